package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	batchLen = 100
	nexts    = 10
	// Writes a second beside readwhilewriting's reader.
	writesPerSecondBeside = 100_000
	// User data in the WAL when loadwal's process is killed.
	walPairs    = (64 << 20) / pairLen
	loadwalSeed = 17
)

type kind int

const (
	fillSequential kind = iota
	fillRandom
	fillBatch
	syncPut
	readRandom
	readMissing
	multiRead
	readWhileWriting
	seekRandom
	scanForward
	scanReverse
)

type phase struct {
	name    string
	kind    kind
	threads uint64
	seed    uint64
}

var phases = []phase{
	{"fillseq", fillSequential, 1, 1},
	{"fillrandom", fillRandom, 1, 2},
	{"fillrandom-2t", fillRandom, 2, 3},
	{"overwrite", fillRandom, 1, 4},
	{"fillbatch", fillBatch, 1, 5},
	{"syncput-1t", syncPut, 1, 6},
	{"syncput-4t", syncPut, 4, 7},
	{"syncput-16t", syncPut, 16, 8},
	{"readrandom", readRandom, 1, 9},
	{"readrandom-2t", readRandom, 2, 10},
	{"readmissing", readMissing, 1, 11},
	{"multireadrandom", multiRead, 1, 12},
	{"readwhilewriting", readWhileWriting, 1, 13},
	{"seekrandom", seekRandom, 1, 14},
	{"readseq", scanForward, 1, 15},
	{"readreverse", scanReverse, 1, 16},
}

func (p *phase) writes() bool {
	return p.kind <= syncPut
}

// opsPerThread gives the operations of each thread.
func (p *phase) opsPerThread(num, reads uint64) uint64 {
	var total uint64
	switch p.kind {
	case fillSequential, fillRandom, fillBatch:
		total = num
	case syncPut:
		total = min(map[uint64]uint64{1: 6000, 4: 12_000, 16: 24_000}[p.threads], num)
	case seekRandom:
		total = reads / 4
	case scanForward, scanReverse:
		total = 0
	default:
		total = reads
	}
	return total / p.threads
}

// epoch makes time.Since read one clock only.
var epoch = time.Now()

// watch times operations: each look at the clock ends one and starts the next.
type watch struct {
	last      time.Duration
	latencies histogram
	ops       uint64
	found     uint64
}

func newWatch() *watch {
	return &watch{last: time.Since(epoch)}
}

func (w *watch) done(ops uint64) {
	now := time.Since(epoch)
	w.latencies.add(uint64(now - w.last))
	w.last = now
	w.ops += ops
}

func runThread(db *engine, p *phase, index, num, reads uint64, pool []byte) (*watch, error) {
	ops := p.opsPerThread(num, reads)
	r := newRng(p.seed, index)
	next := values{pool: pool}
	key := new([keyLen]byte)
	keys := make([][keyLen]byte, batchLen)
	w := newWatch()
	switch p.kind {
	case fillSequential:
		for number := range ops {
			if err := db.put(setKey(key, number), next.next(), false); err != nil {
				return w, err
			}
			w.done(1)
		}
	case fillRandom, syncPut:
		for range ops {
			err := db.put(setKey(key, r.below(num)), next.next(), p.kind == syncPut)
			if err != nil {
				return w, err
			}
			w.done(1)
		}
	case fillBatch:
		batch := make([][]byte, batchLen)
		for range ops / batchLen {
			for i := range keys {
				setKey(&keys[i], r.below(num))
				batch[i] = next.next()
			}
			if err := db.putBatch(keys, batch); err != nil {
				return w, err
			}
			w.done(batchLen)
		}
	case readRandom, readMissing, readWhileWriting:
		set := setKey
		if p.kind == readMissing {
			set = setMissingKey
		}
		for range ops {
			n, err := db.get(set(key, r.below(num)))
			if err != nil {
				return w, err
			}
			if n == valueLen {
				w.found++
			}
			w.done(1)
		}
	case multiRead:
		for range ops / batchLen {
			for i := range keys {
				setKey(&keys[i], r.below(num))
			}
			found, err := db.multiGet(keys)
			if err != nil {
				return w, err
			}
			w.found += found
			w.done(batchLen)
		}
	case seekRandom:
		for range ops {
			seen, err := db.seek(setKey(key, r.below(num)), nexts)
			if err != nil {
				return w, err
			}
			w.found += seen
			w.done(1)
		}
	case scanForward, scanReverse:
		bytes := uint64(0)
		err := db.scan(p.kind == scanReverse, func(key, value []byte) {
			bytes += uint64(len(key) + len(value))
			w.done(1)
		})
		if err != nil {
			return w, err
		}
		if bytes != w.ops*pairLen {
			return w, fmt.Errorf("a scan gave %d bytes", bytes)
		}
		w.found = w.ops
	}
	return w, nil
}

// writeBeside overwrites random keys at a fixed rate until it is told to stop.
func writeBeside(db *engine, num uint64, pool []byte, stop *atomic.Bool) (uint64, error) {
	const burst = 100
	r := newRng(loadwalSeed+1, 0)
	next := values{pool: pool}
	key := new([keyLen]byte)
	start := time.Now()
	written := uint64(0)
	for {
		for range burst {
			if err := db.put(setKey(key, r.below(num)), next.next(), false); err != nil {
				return written, err
			}
		}
		written += burst
		if stop.Load() {
			return written, nil
		}
		due := time.Duration(float64(written) / writesPerSecondBeside * 1e9)
		time.Sleep(due - time.Since(start))
	}
}

// runThreads runs the threads of a phase; gives their work, how long it took, and what was
// written beside them.
func runThreads(
	db *engine, p *phase, num, reads uint64, pool []byte,
) (*watch, time.Duration, uint64, error) {
	var stop atomic.Bool
	var beside sync.WaitGroup
	var written uint64
	var writeErr error
	if p.kind == readWhileWriting {
		beside.Add(1)
		go func() {
			defer beside.Done()
			written, writeErr = writeBeside(db, num, pool, &stop)
		}()
	}
	works := make([]*watch, p.threads)
	errs := make([]error, p.threads)
	var threads sync.WaitGroup
	ready := make(chan struct{})
	for i := range p.threads {
		threads.Add(1)
		go func() {
			defer threads.Done()
			<-ready
			works[i], errs[i] = runThread(db, p, i, num, reads, pool)
		}()
	}
	start := time.Now()
	close(ready)
	threads.Wait()
	elapsed := time.Since(start)
	stop.Store(true)
	beside.Wait()
	all := newWatch()
	for i, work := range works {
		if errs[i] != nil {
			return all, elapsed, written, errs[i]
		}
		all.latencies.merge(&work.latencies)
		all.ops += work.ops
		all.found += work.found
	}
	return all, elapsed, written, writeErr
}

// liveKeys counts the keys that are there after the phase, and what must run before it.
func liveKeys(name string, num uint64) uint64 {
	before := []string{name}
	if name == "overwrite" {
		// The one phase that runs on what another left.
		before = []string{"fillrandom", "overwrite"}
	}
	seen := make([]bool, num)
	count := uint64(0)
	for _, name := range before {
		p := find(name)
		if p.kind == fillSequential {
			return num
		}
		for thread := range p.threads {
			r := newRng(p.seed, thread)
			for range p.opsPerThread(num, 0) {
				if number := r.below(num); !seen[number] {
					seen[number] = true
					count++
				}
			}
		}
	}
	return count
}

func find(name string) *phase {
	for i := range phases {
		if phases[i].name == name {
			return &phases[i]
		}
	}
	return nil
}

func print(document map[string]any) error {
	document["engine"] = "pebble"
	return json.NewEncoder(os.Stdout).Encode(document)
}

func measure(db *engine, s settings, p *phase, num, reads uint64, pool []byte) error {
	if err := resetPeakRSS(); err != nil {
		return err
	}
	startCost, err := costNow()
	if err != nil {
		return err
	}
	start := time.Now()
	work, elapsed, beside, err := runThreads(db, p, num, reads, pool)
	if err != nil {
		return err
	}
	foreground, err := costNow()
	if err != nil {
		return err
	}
	settled := start.Add(elapsed)
	if p.writes() {
		if settled, err = db.settle(); err != nil {
			return err
		}
	}
	end, err := costNow()
	if err != nil {
		return err
	}
	total := end.since(startCost)
	rss, err := peakRSS()
	if err != nil {
		return err
	}
	seconds := elapsed.Seconds()
	document := map[string]any{
		"phase":               p.name,
		"threads":             p.threads,
		"ops":                 work.ops,
		"found":               work.found,
		"seconds":             seconds,
		"ops_per_second":      float64(work.ops) / seconds,
		"p50_ns":              work.latencies.percentile(0.5),
		"p99_ns":              work.latencies.percentile(0.99),
		"p999_ns":             work.latencies.percentile(0.999),
		"p9999_ns":            work.latencies.percentile(0.9999),
		"max_ns":              work.latencies.max,
		"cpu_seconds":         foreground.since(startCost).cpuSeconds,
		"other_cores":         foreground.since(startCost).otherCores(seconds),
		"cpu_seconds_settled": total.cpuSeconds,
		"peak_rss_bytes":      rss,
		"multi_get_is_a_loop": p.kind == multiRead,
	}
	if p.kind == readWhileWriting {
		document["writes_beside_per_second"] = float64(beside) / seconds
	}
	if p.writes() {
		settledSeconds := max(settled.Sub(start).Seconds(), seconds)
		disk, err := diskBytes(s.dir)
		if err != nil {
			return err
		}
		userBytes := float64(work.ops * pairLen)
		document["settled_seconds"] = settledSeconds
		document["ops_per_second_settled"] = float64(work.ops) / settledSeconds
		document["write_amplification"] = float64(total.writeCallBytes) / userBytes
		document["device_amplification"] = float64(total.deviceBytes) / userBytes
		document["space_amplification"] = float64(disk) / float64(liveKeys(p.name, num)*pairLen)
	}
	return print(document)
}

// loadWal leaves user data in the WAL, says so, and waits to be killed.
func loadWal(s settings, pool []byte) error {
	// So that none of it is flushed.
	s.writeBufferBytes = 512 << 20
	db, err := open(s)
	if err != nil {
		return err
	}
	r := newRng(loadwalSeed, 0)
	next := values{pool: pool}
	key := new([keyLen]byte)
	for n := 1; n <= walPairs; n++ {
		// The last one with sync: Pebble keeps some of the WAL in the process until then.
		if err := db.put(setKey(key, r.next()), next.next(), n == walPairs); err != nil {
			return err
		}
	}
	if err := print(map[string]any{"phase": "loadwal", "ops": walPairs}); err != nil {
		return err
	}
	// Not `select {}`, which Go takes for a deadlock once background work is done.
	for {
		time.Sleep(time.Hour)
	}
}

// reopen measures how long it takes from open to the first get.
func reopen(s settings) error {
	r := newRng(loadwalSeed, 0)
	var first, last [keyLen]byte
	setKey(&first, r.next())
	for range walPairs - 1 {
		setKey(&last, r.next())
	}
	if err := resetPeakRSS(); err != nil {
		return err
	}
	startCost, err := costNow()
	if err != nil {
		return err
	}
	start := time.Now()
	db, err := open(s)
	if err != nil {
		return err
	}
	n, err := db.get(first[:])
	elapsed := time.Since(start)
	if err != nil {
		return err
	}
	end, err := costNow()
	if err != nil {
		return err
	}
	if m, err := db.get(last[:]); err != nil || n != valueLen || m != valueLen {
		return fmt.Errorf("a pair that was in the WAL is gone: %v", err)
	}
	rss, err := peakRSS()
	if err != nil {
		return err
	}
	cpu := end.since(startCost).cpuSeconds
	err = print(map[string]any{
		"phase":               "reopen",
		"threads":             1,
		"ops":                 1,
		"found":               1,
		"seconds":             elapsed.Seconds(),
		"ops_per_second":      1 / elapsed.Seconds(),
		"p50_ns":              elapsed.Nanoseconds(),
		"p99_ns":              elapsed.Nanoseconds(),
		"p999_ns":             elapsed.Nanoseconds(),
		"p9999_ns":            elapsed.Nanoseconds(),
		"max_ns":              elapsed.Nanoseconds(),
		"cpu_seconds":         cpu,
		"other_cores":         end.since(startCost).otherCores(elapsed.Seconds()),
		"cpu_seconds_settled": cpu,
		"peak_rss_bytes":      rss,
	})
	if err != nil {
		return err
	}
	return db.close()
}

func run(args arguments) error {
	s := settings{
		dir:              args.dir,
		writeBufferBytes: 64 << 20,
		cacheBytes:       256 << 20,
		bloomBits:        10,
	}
	pool := valuePool()
	switch args.phases[0] {
	case "loadwal":
		return loadWal(s, pool)
	case "reopen":
		return reopen(s)
	}
	for _, name := range args.phases {
		if find(name) == nil {
			return fmt.Errorf("no phase `%s` among others", name)
		}
	}
	db, err := open(s)
	if err != nil {
		return err
	}
	for _, name := range args.phases {
		if err := measure(db, s, find(name), args.num, args.reads, pool); err != nil {
			return err
		}
	}
	return db.close()
}
