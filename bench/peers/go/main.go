// A peer for the race: the pet store's three operations, written the way a Go engineer would for one machine.
//
// Design choices:
//   - It uses net/http and encoding/json, like most Go services, because three routes need no framework.
//   - It uses mattn/go-sqlite3, the usual driver, through database/sql. Statements are prepared once. There is a small
//     pool of read connections and one write connection: SQLite has one writer, so waiting in Go beats SQLITE_BUSY.
//   - A mutex guards the write connection. The pool of database/sql would hand a freed connection to a random waiter,
//     so some create requests would wait very long. sync.Mutex switches to first come, first served.
//   - Queries have no context. They take microseconds, and watching for cancellation would cost a goroutine each.
//   - Each create request is one BEGIN IMMEDIATE ... COMMIT with WAL and synchronous=FULL, so it is on disk before the
//     201.
//   - Key records are read from the database once and then kept in a map by SHA-256, under an RWMutex.
//   - Each list request is one query, as in most services. With -tuned, tuned.go adds what petstore does in addition, a
//     cache of rendered pages and group commit, to show how much these two gain.
//   - An Idempotency-Key is looked up and recorded in the transaction that adds the animal. If a request with the same
//     key is in flight, the second one waits for the first. A sync.Map has the keys in flight.
//   - One mutex guards both windows of a key, so a request counts in both or in neither.
//
// In two ways, this peer does less work than petstore: it keeps its counters only in this process, and it never checks
// a cached key again. Petstore's counters are shared by all workers and survive kill -9, and revoking a key takes effect
// with the next request. The peer has no bans, scopes, limits per address, staging, logs or metrics, because the race
// does not use them.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type server struct {
	store    *store
	keysLock sync.RWMutex
	keys     map[[32]byte]*key
	prefix   string // of request ids: random per process, followed by a counter
	requests atomic.Uint64
	inFlight sync.Map // for each inFlight, a channel that is closed when the request ends

	// Nil unless -tuned; see tuned.go.
	pages   *pageCache
	creates chan<- *create
}

func newServer(st *store, tuned bool) *server {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		log.Fatal(err)
	}
	s := &server{store: st, keys: map[[32]byte]*key{}, prefix: hex.EncodeToString(random[:]) + "-"}
	if tuned {
		s.tune()
	}
	return s
}

// ServeHTTP authenticates a request, counts it, and routes it to its operation.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/readyz" {
		return
	}
	h := w.Header()
	h.Set("X-Request-Id", s.prefix+strconv.FormatUint(s.requests.Add(1), 10))
	k, err := s.authenticate(r)
	if err != nil {
		h.Set("Www-Authenticate", `Bearer realm="petstore"`)
		fail(w, err)
		return
	}
	now := time.Now()
	v := k.admit(now)
	// Use net/http's own spelling of these names, because it converts others in each call.
	h.Set("X-Ratelimit-Limit", strconv.FormatInt(v.limit, 10))
	h.Set("X-Ratelimit-Remaining", strconv.FormatInt(v.remaining, 10))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(ceilSeconds(time.Duration(v.end.UnixNano())), 10))
	if !v.admitted {
		h.Set("Retry-After", strconv.FormatInt(ceilSeconds(v.end.Sub(now)), 10))
		fail(w, errRateLimit)
		return
	}
	if err := s.route(w, r, k); err != nil {
		fail(w, err)
	}
}

func (s *server) authenticate(r *http.Request) (*key, error) {
	sent := r.Header["Authorization"]
	if len(sent) != 1 {
		return nil, errUnauthorized
	}
	scheme, secret, _ := strings.Cut(sent[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return nil, errUnauthorized
	}
	hash := sha256.Sum256([]byte(secret))
	s.keysLock.RLock()
	k := s.keys[hash]
	s.keysLock.RUnlock()
	if k != nil {
		return k, nil
	}
	s.keysLock.Lock()
	defer s.keysLock.Unlock()
	if k = s.keys[hash]; k != nil { // another request has loaded the key, which must have only one pair of windows
		return k, nil
	}
	k, err := s.store.loadKey(hash)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errUnauthorized
	}
	if err == nil {
		s.keys[hash] = k
	}
	return k, err
}

func (s *server) route(w http.ResponseWriter, r *http.Request, k *key) error {
	reading := r.Method == http.MethodGet || r.Method == http.MethodHead
	if r.URL.Path == "/v1/pets" {
		switch {
		case reading:
			return s.listPets(w, r)
		case r.Method == http.MethodPost:
			return s.createPet(w, r, k)
		}
		w.Header().Set("Allow", "GET, HEAD, POST")
		return errMethod
	}
	id := strings.TrimPrefix(r.URL.Path, "/v1/pets/")
	if id == r.URL.Path || strings.Contains(id, "/") {
		return errNotFound
	}
	if !reading {
		w.Header().Set("Allow", "GET, HEAD")
		return errMethod
	}
	return s.getPet(w, id)
}

func main() {
	file := flag.String("db", "peer.db", "SQLite file")
	port := flag.Int("port", 8080, "port on 127.0.0.1")
	keyFile := flag.String("keys", "keys", "a file with the API keys to accept, one per line")
	perMinute := flag.Int64("per-minute", 60, "requests per minute for each key")
	perDay := flag.Int64("per-day", 1000, "requests per day for each key")
	spent := flag.String("spent-key", "", "an additional API key with a limit of one request a day")
	animals := flag.Int("seed", 0, "animals to insert into an empty database")
	tuned := flag.Bool("tuned", false, "cache rendered pages and commit create requests in groups, as petstore does")
	flag.Parse()

	secrets, err := os.ReadFile(*keyFile)
	if err != nil {
		log.Fatal(err)
	}
	s, err := openStore(*file)
	if err == nil {
		err = s.saveKeys(*perMinute, *perDay, strings.Fields(string(secrets))...)
	}
	if err == nil && *spent != "" {
		err = s.saveKeys(1, 1, *spent)
	}
	if err == nil {
		err = s.seed(*animals)
	}
	if err != nil {
		log.Fatal(err)
	}
	go s.prune()
	listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(*port))
	if err != nil {
		log.Fatal(err)
	}
	web := &http.Server{Handler: newServer(s, *tuned), ReadHeaderTimeout: 10 * time.Second}
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	go func() {
		<-stop.Done()
		web.Close()
	}()
	if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
