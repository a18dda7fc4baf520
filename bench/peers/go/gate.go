package main

// The gate: minute and day windows of a key, counted in one step.

import (
	"sync"
	"time"
)

// window is fixed and starts at the first request in it.
type window struct {
	length time.Duration
	limit  int64
	used   int64
	end    time.Time
}

func (w *window) roll(now time.Time) {
	if !now.Before(w.end) {
		w.used, w.end = 0, now.Add(w.length)
	}
}

func (w *window) left() int64 { return w.limit - w.used }

// verdict is what one request is told: the window that the headers speak of.
type verdict struct {
	admitted         bool
	limit, remaining int64
	end              time.Time
}

// key is an API key's record and its two windows.
type key struct {
	hash        [32]byte
	mu          sync.Mutex
	minute, day window
}

func (k *key) admit(now time.Time) verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.minute.roll(now)
	k.day.roll(now)
	speaks := &k.day
	if k.minute.left() > 0 && k.day.left() > 0 {
		k.minute.used++
		k.day.used++
		if k.minute.left() < k.day.left() {
			speaks = &k.minute
		}
		return verdict{true, speaks.limit, speaks.left(), speaks.end}
	}
	// Refused: of the exhausted windows, the one that reopens last.
	if k.day.left() > 0 || (k.minute.left() <= 0 && k.minute.end.After(k.day.end)) {
		speaks = &k.minute
	}
	return verdict{false, speaks.limit, 0, speaks.end}
}

func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
