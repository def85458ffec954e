package main

import (
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// settings are the budgets that are the same for all engines.
type settings struct {
	dir              string
	writeBufferBytes uint64
	cacheBytes       int64
	bloomBits        int
}

// quiet keeps Pebble's own log out of the results.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, _ ...any) {
	panic(format)
}

type engine struct {
	db *pebble.DB
}

// open opens the database with the newest format. Pebble has no LZ4: blocks are compressed by
// its default, Snappy.
func open(s settings) (*engine, error) {
	options := &pebble.Options{
		CacheSize:                   s.cacheBytes,
		MemTableSize:                s.writeBufferBytes,
		MemTableStopWritesThreshold: 2,
		MaxOpenFiles:                10_000,
		FormatMajorVersion:          pebble.FormatNewest,
		Logger:                      quiet{},
	}
	for i := range options.Levels {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(s.bloomBits)
	}
	db, err := pebble.Open(s.dir, options)
	if err != nil {
		return nil, err
	}
	return &engine{db}, nil
}

func (e *engine) put(key, value []byte, sync bool) error {
	if sync {
		return e.db.Set(key, value, pebble.Sync)
	}
	return e.db.Set(key, value, pebble.NoSync)
}

func (e *engine) putBatch(keys [][keyLen]byte, values [][]byte) error {
	batch := e.db.NewBatch()
	for i := range keys {
		if err := batch.Set(keys[i][:], values[i], nil); err != nil {
			return err
		}
	}
	return batch.Commit(pebble.NoSync)
}

// get gives the length of a key's value; negative if there is none.
func (e *engine) get(key []byte) (int, error) {
	value, closer, err := e.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	n := len(value)
	return n, closer.Close()
}

func (e *engine) multiGet(keys [][keyLen]byte) (uint64, error) {
	found := uint64(0)
	for i := range keys {
		n, err := e.get(keys[i][:])
		if err != nil {
			return found, err
		}
		if n >= 0 {
			found++
		}
	}
	return found, nil
}

func (e *engine) scan(reverse bool, visit func(key, value []byte)) error {
	iter, err := e.db.NewIter(nil)
	if err != nil {
		return err
	}
	step, valid := iter.Next, false
	if reverse {
		step, valid = iter.Prev, iter.Last()
	} else {
		valid = iter.First()
	}
	for ; valid; valid = step() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return errors.Join(err, iter.Close())
		}
		visit(iter.Key(), value)
	}
	return errors.Join(iter.Error(), iter.Close())
}

func (e *engine) seek(key []byte, nexts int) (uint64, error) {
	iter, err := e.db.NewIter(nil)
	if err != nil {
		return 0, err
	}
	seen := uint64(0)
	for valid := iter.SeekGE(key); valid; valid = iter.Next() {
		if _, err := iter.ValueAndErr(); err != nil {
			return seen, errors.Join(err, iter.Close())
		}
		seen++
		if seen > uint64(nexts) {
			break
		}
	}
	return seen, errors.Join(iter.Error(), iter.Close())
}

// settle writes memtables to tables and waits until there is nothing left to do; gives the
// moment at which that was so.
func (e *engine) settle() (time.Time, error) {
	const pause, quiet = 20 * time.Millisecond, 300 * time.Millisecond
	if err := e.db.Flush(); err != nil {
		return time.Time{}, err
	}
	quietSince := time.Now()
	for time.Since(quietSince) < quiet {
		time.Sleep(pause)
		m := e.db.Metrics()
		if m.Compact.NumInProgress > 0 || m.Flush.NumInProgress > 0 || m.Table.ObsoleteCount > 0 {
			quietSince = time.Now()
		}
	}
	return quietSince, nil
}

func (e *engine) close() error {
	return e.db.Close()
}
