package main

import (
	"bytes"
	"slices"
	"testing"
)

// The same figures stand in driver/src/data.rs.
func TestNumbersKeysAndValuesAreThoseOfTheRustDriver(t *testing.T) {
	r := newRng(7, 3)
	drawn := []uint64{r.below(1_000_000), r.below(1_000_000), r.below(1_000_000), r.below(1_000_000)}
	if !slices.Equal(drawn, []uint64{323252, 854670, 937498, 248029}) {
		t.Errorf("drew %d", drawn)
	}
	var key [keyLen]byte
	if !bytes.Equal(setKey(&key, 0x0102), []byte("\x00\x00\x00\x00\x00\x00\x01\x0200000000")) {
		t.Errorf("key %q", key)
	}
	if setMissingKey(&key, 5)[15] != '1' {
		t.Errorf("missing key %q", key)
	}
	pool := valuePool()
	if string(pool[:8]) != "a+k}D3*s" || !bytes.Equal(pool[:50], pool[50:100]) || len(pool)%valueLen != 0 {
		t.Errorf("pool of %d bytes starts with %q", len(pool), pool[:8])
	}
}

func TestBucketsAreOrderedAndClose(t *testing.T) {
	last := 0
	for nanos := uint64(0); nanos < 5000; nanos++ {
		top := upper(bucket(nanos))
		if top < nanos || float64(top-nanos) > float64(nanos)/64 || bucket(nanos) < last {
			t.Fatalf("%d lies in a bucket up to %d", nanos, top)
		}
		last = bucket(nanos)
	}
}
