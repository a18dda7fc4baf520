package main

// The three operations: what they read from requests, and how they respond.

import (
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

var statuses = []string{"available", "pending", "sold"}

// Pet is an animal in a response.
type Pet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

func (s *server) listPets(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	for _, name := range []string{"limit", "status", "cursor"} {
		if len(query[name]) > 1 {
			return badParameter(name + " may be given once.")
		}
	}
	limit, after := 20, int64(0)
	if query.Has("limit") {
		n, err := strconv.ParseUint(query.Get("limit"), 10, 8)
		if err != nil || n < 1 || n > 100 {
			return badParameter("limit must be a whole number from 1 to 100.")
		}
		limit = int(n)
	}
	status := query.Get("status")
	if query.Has("status") && !isStatus(status) {
		return badParameter("status must be one of available, pending, sold.")
	}
	if query.Has("cursor") {
		var ok bool
		if after, ok = readCursor(query.Get("cursor")); !ok {
			return badParameter("cursor is not valid.")
		}
	}
	p, err := s.page(pageKey{status, after, limit})
	if err != nil {
		return err
	}
	h := w.Header()
	if p.link != "" {
		h.Set("Link", p.link)
	}
	h.Set("Etag", p.etag)
	h.Set("Cache-Control", "private, no-cache")
	h.Set("Vary", "Authorization")
	if r.Header.Get("If-None-Match") == p.etag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	reply(w, http.StatusOK, p.body)
	return nil
}

// page is a rendered list, which depends only on its pageKey and the animals.
type page struct {
	body       []byte
	etag, link string
}

type pageKey struct {
	status string
	after  int64
	limit  int
}

func (s *server) page(k pageKey) (*page, error) {
	if s.pages != nil {
		return s.pages.get(k, s.render)
	}
	return s.render(k)
}

func (s *server) render(k pageKey) (*page, error) {
	pets, err := s.store.list(k.status, k.after, k.limit+1) // one more, to see whether there is a next page
	if err != nil {
		return nil, err
	}
	p := &page{}
	if len(pets) > k.limit {
		pets = pets[:k.limit]
		next := "/v1/pets?limit=" + strconv.Itoa(k.limit)
		if k.status != "" {
			next += "&status=" + k.status
		}
		p.link = "<" + next + "&cursor=" + makeCursor(pets[k.limit-1].ID) + `>; rel="next"`
	}
	if p.body, err = encode(pets); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(p.body)
	p.etag = `"` + hex.EncodeToString(sum[:12]) + `"`
	return p, nil
}

func (s *server) getPet(w http.ResponseWriter, id string) error {
	h := w.Header()
	h.Set("Deprecation", "@1794614400")
	h.Set("Sunset", "Thu, 05 Dec 2030 00:00:00 GMT")
	h["Link"] = []string{`</v1/pets>; rel="successor-version"`, `</docs>; rel="deprecation"`}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != id { // canonical decimal only
		return errNoPet
	}
	p, err := s.store.get(n)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoPet
	}
	if err != nil {
		return err
	}
	return replyJSON(w, http.StatusOK, p)
}

// creation is an animal to be added, with its idempotency key if the client sent one.
type creation struct {
	pet      Pet
	keyHash  [32]byte
	token    string // the Idempotency-Key, or empty
	bodyHash [32]byte
	replayed bool  // the animal was added by an earlier request
	err      error // concerns only this creation
}

func (s *server) createPet(w http.ResponseWriter, r *http.Request, k *key) error {
	if sent := r.Header.Get("Content-Type"); sent != "" {
		if kind, _, err := mime.ParseMediaType(sent); err != nil || kind != "application/json" {
			return errMediaType
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return errTooLarge
	}
	if err != nil {
		return badBody("The body could not be read.")
	}
	p, err := parsePet(body)
	if err != nil {
		return err
	}
	c := &creation{pet: p, keyHash: k.hash}
	if sent, ok := r.Header["Idempotency-Key"]; ok {
		if len(sent) != 1 || !goodToken(sent[0]) {
			return badParameter("Idempotency-Key must be given once, with 1 to 255 visible ASCII characters.")
		}
		c.token, c.bodyHash = sent[0], sha256.Sum256(body)
		defer s.claim(inFlight{k.hash, c.token})()
	}
	if err := s.add(c); err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/pets/"+strconv.FormatInt(c.pet.ID, 10))
	if c.replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	return replyJSON(w, http.StatusCreated, c.pet)
}

// inFlight names an idempotency key that a request in flight uses.
type inFlight struct {
	keyHash [32]byte
	token   string
}

// claim waits until no other request uses the idempotency key, and returns the function that releases it.
func (s *server) claim(name inFlight) func() {
	released := make(chan struct{})
	for {
		other, taken := s.inFlight.LoadOrStore(name, released)
		if !taken {
			return func() {
				s.inFlight.Delete(name)
				close(released)
			}
		}
		<-other.(chan struct{})
	}
}

func goodToken(token string) bool {
	invisible := func(c rune) bool { return c < 0x21 || c > 0x7e }
	return len(token) >= 1 && len(token) <= 255 && strings.IndexFunc(token, invisible) < 0
}

// parsePet validates a new animal. Raw members distinguish absent members from null. Duplicate members and lone
// surrogates are accepted, because encoding/json does not report them.
func parsePet(body []byte) (Pet, error) {
	var sent struct{ Name, CategoryID, Status json.RawMessage }
	if err := json.Unmarshal(body, &sent); err != nil {
		return Pet{}, badBody("The body must be a JSON object.")
	}
	p := Pet{Status: "available"}
	var faults []string
	if !member(sent.Name, &p.Name) || !goodName(p.Name) {
		faults = append(faults, "name must be a string of 1 to 255 characters, not blank, without control characters")
	}
	if !member(sent.CategoryID, &p.CategoryID) {
		faults = append(faults, "categoryId must be a whole number of 64 bits")
	}
	if sent.Status != nil && (!member(sent.Status, &p.Status) || !isStatus(p.Status)) {
		faults = append(faults, "status must be one of available, pending, sold")
	}
	if faults != nil {
		return Pet{}, badBody(strings.Join(faults, "; ") + ".")
	}
	return p, nil
}

func member(raw json.RawMessage, into any) bool {
	return raw != nil && string(raw) != "null" && json.Unmarshal(raw, into) == nil
}

func goodName(name string) bool {
	control := func(c rune) bool { return c < 0x20 || c == 0x7f }
	return utf8.RuneCountInString(name) <= 255 && strings.TrimSpace(name) != "" && strings.IndexFunc(name, control) < 0
}

func isStatus(s string) bool { return s == "available" || s == "pending" || s == "sold" }

// makeCursor returns a cursor: the last id seen, and a checksum that detects invalid cursors.
func makeCursor(id int64) string {
	raw := binary.BigEndian.AppendUint64(make([]byte, 0, 12), uint64(id))
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw)))
}

func readCursor(cursor string) (int64, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(raw) != 12 || crc32.ChecksumIEEE(raw[:8]) != binary.BigEndian.Uint32(raw[8:]) {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(raw)), true
}
