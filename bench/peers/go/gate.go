package main

// The gate counts each request in the minute and day windows of its key in one step.

import (
	"sync"
	"time"
)

// window is a fixed window, which starts with its first request.
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

// verdict is the decision about a request, with the window that the headers describe.
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
	shown := &k.day
	if k.minute.left() > 0 && k.day.left() > 0 {
		k.minute.used++
		k.day.used++
		if k.minute.left() < k.day.left() {
			shown = &k.minute
		}
		return verdict{true, shown.limit, shown.left(), shown.end}
	}
	// Refused: describe the exhausted window that ends last.
	if k.day.left() > 0 || (k.minute.left() <= 0 && k.minute.end.After(k.day.end)) {
		shown = &k.minute
	}
	return verdict{false, shown.limit, 0, shown.end}
}

func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
