package main

// Petstore's two optimizations, for -tuned: rendered pages are cached until the animals change, and waiting create
// requests share one transaction. Both are simpler here, because only this process writes, so a counter is enough.

import (
	"sync"
	"sync/atomic"
)

const (
	maxPages = 1024
	maxGroup = 512
)

// pageCache caches rendered pages, with the version of the animals that each one shows.
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
	// Read the version before the query, so that a page rendered during a commit counts as out of date.
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

// add writes one animal to disk, in a separate transaction or with a group.
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

// write repeatedly commits all waiting creations. They have been validated, so a group fails only as a whole.
func (s *server) write(creates <-chan *create) {
	for first := range creates {
		group, creations := []*create{first}, []*creation{first.creation}
		for waiting := len(creates); waiting > 0 && len(group) < maxGroup; waiting-- {
			c := <-creates
			group, creations = append(group, c), append(creations, c.creation)
		}
		err := s.store.add(creations...)
		s.pages.version.Add(1) // before responding, so that a client sees its animal after the 201
		for _, c := range group {
			c.done <- err
		}
	}
}
