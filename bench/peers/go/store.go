package main

// The store: SQLite, a pool of readers and one writer.

import (
	"crypto/sha256"
	"database/sql"
	"fmt"
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
);`

type store struct {
	read, write                                             *sql.DB
	selectAll, selectByStatus, selectOne, selectKey, insert *sql.Stmt
	writing                                                 sync.Mutex
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
	// Idle as many as open: the default of two would close and reopen files all the time.
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

// add gives each animal its id; on return they are on disk, all or none.
func (s *store) add(pets ...*Pet) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	tx, err := s.write.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	insert := tx.Stmt(s.insert)
	for _, p := range pets {
		result, err := insert.Exec(p.Name, p.CategoryID, p.Status)
		if err != nil {
			return err
		}
		if p.ID, err = result.LastInsertId(); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// seed fills an empty table; every contender of the race gets these same animals.
func (s *store) seed(n int) error {
	var any int
	if err := s.write.QueryRow("SELECT EXISTS (SELECT 1 FROM pets)").Scan(&any); err != nil || any == 1 {
		return err
	}
	pets := make([]*Pet, n)
	for i := range pets {
		number := int64(i + 1)
		pets[i] = &Pet{Name: fmt.Sprintf("Animal %d", number), CategoryID: number % 50, Status: statuses[number%3]}
	}
	return s.add(pets...)
}

func (s *store) saveKey(secret string, perMinute, perDay int64) error {
	hash := sha256.Sum256([]byte(secret))
	_, err := s.write.Exec("INSERT OR REPLACE INTO api_keys VALUES (?, ?, ?)", hash[:], perMinute, perDay)
	return err
}

func (s *store) loadKey(hash [32]byte) (*key, error) {
	k := &key{minute: window{length: time.Minute}, day: window{length: 24 * time.Hour}}
	err := s.selectKey.QueryRow(hash[:]).Scan(&k.minute.limit, &k.day.limit)
	return k, err
}
