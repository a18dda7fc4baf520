package main

// The store: SQLite with a pool of readers and one writer.

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/url"
	"runtime"
	"sync"
	"time"

	_ "github.com/mattn/go-sqlite3"
)

const schema = `
CREATE TABLE IF NOT EXISTS pets (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	category_id INTEGER NOT NULL,
	status TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS pets_by_status ON pets (status, id);
CREATE TABLE IF NOT EXISTS api_keys (
	hash BLOB PRIMARY KEY,
	per_minute INTEGER NOT NULL,
	per_day INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS idempotency (
	key_hash BLOB NOT NULL,
	token TEXT NOT NULL,
	body_hash BLOB NOT NULL,
	pet_id INTEGER NOT NULL,
	created INTEGER NOT NULL,
	PRIMARY KEY (key_hash, token)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotency_by_age ON idempotency (created);`

// Records of idempotency keys are kept this long.
const idempotencyLife = 24 * time.Hour

type store struct {
	read, write                                     *sql.DB
	selectAll, selectByStatus, selectOne, selectKey *sql.Stmt
	insert, selectToken, replaceToken               *sql.Stmt
	writing                                         sync.Mutex
}

func openStore(file string) (*store, error) {
	path := "file:" + url.PathEscape(file) + "?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000"
	s := &store{}
	var err error
	if s.write, err = sql.Open("sqlite3", path+"&_txlock=immediate"); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	if _, err = s.write.Exec(schema); err != nil {
		return nil, err
	}
	if s.read, err = sql.Open("sqlite3", path+"&_query_only=1"); err != nil {
		return nil, err
	}
	// Keep all idle connections open. With the default of two, files would constantly be closed and reopened.
	readers := 4 * runtime.GOMAXPROCS(0)
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)

	prepare := func(db *sql.DB, query string) (stmt *sql.Stmt) {
		if err == nil {
			stmt, err = db.Prepare(query)
		}
		return stmt
	}
	const columns = "SELECT id, name, category_id, status FROM pets "
	s.selectAll = prepare(s.read, columns+"WHERE id > ? ORDER BY id LIMIT ?")
	s.selectByStatus = prepare(s.read, columns+"WHERE status = ? AND id > ? ORDER BY id LIMIT ?")
	s.selectOne = prepare(s.read, columns+"WHERE id = ?")
	s.selectKey = prepare(s.read, "SELECT per_minute, per_day FROM api_keys WHERE hash = ?")
	s.insert = prepare(s.write, "INSERT INTO pets (name, category_id, status) VALUES (?, ?, ?)")
	s.selectToken = prepare(s.write, "SELECT i.body_hash, p.id, p.name, p.category_id, p.status FROM idempotency i "+
		"JOIN pets p ON p.id = i.pet_id WHERE i.key_hash = ? AND i.token = ? AND i.created > ?")
	// REPLACE, because an expired record may still exist.
	s.replaceToken = prepare(s.write, "REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?)")
	return s, err
}

// list returns up to limit animals after a given id, in order.
func (s *store) list(status string, after int64, limit int) ([]Pet, error) {
	var rows *sql.Rows
	var err error
	if status == "" {
		rows, err = s.selectAll.Query(after, limit)
	} else {
		rows, err = s.selectByStatus.Query(status, after, limit)
	}
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	pets := make([]Pet, 0, limit)
	for rows.Next() {
		var p Pet
		if err := rows.Scan(&p.ID, &p.Name, &p.CategoryID, &p.Status); err != nil {
			return nil, err
		}
		pets = append(pets, p)
	}
	return pets, rows.Err()
}

func (s *store) get(id int64) (p Pet, err error) {
	err = s.selectOne.QueryRow(id).Scan(&p.ID, &p.Name, &p.CategoryID, &p.Status)
	return p, err
}

// add writes all animals to disk in one transaction, and sets their ids. An idempotency key is recorded in the same
// transaction as its animal. If the key was used before, the creation becomes a replay or gets an error.
func (s *store) add(creations ...*creation) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	tx, err := s.write.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // has no effect after a commit
	insert, selectToken, replaceToken := tx.Stmt(s.insert), tx.Stmt(s.selectToken), tx.Stmt(s.replaceToken)
	now := time.Now()
	for _, c := range creations {
		p := &c.pet
		if c.token != "" {
			var bodyHash []byte
			var before Pet
			expired := now.Add(-idempotencyLife).Unix()
			err := selectToken.QueryRow(c.keyHash[:], c.token, expired).Scan(
				&bodyHash, &before.ID, &before.Name, &before.CategoryID, &before.Status)
			if err == nil && bytes.Equal(bodyHash, c.bodyHash[:]) {
				c.pet, c.replayed = before, true
				continue
			}
			if err == nil {
				c.err = errMismatch
				continue
			}
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		result, err := insert.Exec(p.Name, p.CategoryID, p.Status)
		if err != nil {
			return err
		}
		if p.ID, err = result.LastInsertId(); err != nil {
			return err
		}
		if c.token != "" {
			if _, err = replaceToken.Exec(c.keyHash[:], c.token, c.bodyHash[:], p.ID, now.Unix()); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

// prune deletes expired idempotency keys every minute until the process ends.
func (s *store) prune() {
	for now := range time.Tick(time.Minute) {
		s.writing.Lock()
		_, err := s.write.Exec("DELETE FROM idempotency WHERE created <= ?", now.Add(-idempotencyLife).Unix())
		s.writing.Unlock()
		if err != nil {
			log.Print(err)
		}
	}
}

// seed fills an empty table with the animals that every contender gets.
func (s *store) seed(n int) error {
	var any int
	if err := s.write.QueryRow("SELECT EXISTS (SELECT 1 FROM pets)").Scan(&any); err != nil || any == 1 {
		return err
	}
	pets := make([]*creation, n)
	for i := range pets {
		number := int64(i + 1)
		p := Pet{Name: fmt.Sprintf("Animal %d", number), CategoryID: number % 50, Status: statuses[number%3]}
		pets[i] = &creation{pet: p}
	}
	return s.add(pets...)
}

func (s *store) saveKeys(perMinute, perDay int64, secrets ...string) error {
	tx, err := s.write.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, secret := range secrets {
		hash := sha256.Sum256([]byte(secret))
		if _, err := tx.Exec("INSERT OR REPLACE INTO api_keys VALUES (?, ?, ?)", hash[:], perMinute, perDay); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *store) loadKey(hash [32]byte) (*key, error) {
	k := &key{hash: hash, minute: window{length: time.Minute}, day: window{length: 24 * time.Hour}}
	err := s.selectKey.QueryRow(hash[:]).Scan(&k.minute.limit, &k.day.limit)
	return k, err
}
