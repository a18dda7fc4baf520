package main

// Petstore's two tricks, for -tuned: rendered pages are kept until the animals change, and creates that wait at the
// same time share one transaction. Both are simpler here: one process is the only writer, so a counter in it will do.

import (
	"sync"
	"sync/atomic"
)

const (
	maxPages = 1024
	maxGroup = 512
)

// pageCache holds pages of one version of the animals.
type pageCache struct {
	version atomic.Uint64
	mu      sync.RWMutex
	pages   map[pageKey]versioned
}

type versioned struct {
	version uint64
	page    *page
}

func (c *pageCache) get(k pageKey, render func(pageKey) (*page, error)) (*page, error) {
	// Read before the query: a page rendered while a create commits counts as old, never as new.
	version := c.version.Load()
	c.mu.RLock()
	hit, ok := c.pages[k]
	c.mu.RUnlock()
	if ok && hit.version == version {
		return hit.page, nil
	}
	p, err := render(k)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pages) >= maxPages {
		c.pages = map[pageKey]versioned{}
	}
	c.pages[k] = versioned{version, p}
	return p, nil
}

// create is a creation that waits for its group to be on disk.
type create struct {
	*creation
	done chan error
}

func (s *server) tune() {
	creates := make(chan *create, maxGroup)
	s.pages, s.creates = &pageCache{pages: map[pageKey]versioned{}}, creates
	go s.write(creates)
}

// add puts one animal on disk, in a transaction of its own or in a group.
func (s *server) add(c *creation) error {
	var err error
	if s.creates == nil {
		err = s.store.add(c)
	} else {
		waiting := &create{c, make(chan error, 1)}
		s.creates <- waiting
		err = <-waiting.done
	}
	if err == nil {
		err = c.err
	}
	return err
}

// write commits whatever is waiting, again and again. What it inserts is validated, so a group fails only as a whole.
func (s *server) write(creates <-chan *create) {
	for first := range creates {
		group, creations := []*create{first}, []*creation{first.creation}
		for waiting := len(creates); waiting > 0 && len(group) < maxGroup; waiting-- {
			c := <-creates
			group, creations = append(group, c), append(creations, c.creation)
		}
		err := s.store.add(creations...)
		s.pages.version.Add(1) // before the answers: who saw a 201 sees the animal
		for _, c := range group {
			c.done <- err
		}
	}
}
