package main

import (
	"encoding/binary"
	"math/bits"
)

const (
	keyLen   = 16
	valueLen = 100
	pairLen  = keyLen + valueLen
	poolLen  = 1 << 20
)

// setKey makes the key of a number: 8 bytes, most significant first, then '0'.
func setKey(key *[keyLen]byte, number uint64) []byte {
	binary.BigEndian.PutUint64(key[:8], number)
	for i := 8; i < keyLen; i++ {
		key[i] = '0'
	}
	return key[:]
}

// setMissingKey makes a key that was never written, next to that of a number.
func setMissingKey(key *[keyLen]byte, number uint64) []byte {
	setKey(key, number)
	key[keyLen-1] = '1'
	return key[:]
}

// rng is a Weyl sequence through a multiplication of 128 bits.
type rng uint64

func newRng(seed, thread uint64) rng {
	return rng((seed*1000+thread)*0x9e37_79b9_7f4a_7c15 ^ 0xd1b5_4a32_d192_ed03)
}

func (r *rng) next() uint64 {
	*r += 0xa076_1d64_78bd_642f
	high, low := bits.Mul64(uint64(*r), uint64(*r)^0xe703_7ed1_a0b4_28db)
	return high ^ low
}

// below draws a number below n.
func (r *rng) below(n uint64) uint64 {
	high, _ := bits.Mul64(r.next(), n)
	return high
}

// valuePool makes the buffer of which values are slices: 50 random bytes, twice, and so on.
func valuePool() []byte {
	r := newRng(0, 0)
	pool := make([]byte, 0, poolLen+valueLen)
	var raw [valueLen / 2]byte
	for len(pool) < poolLen {
		for i := range raw {
			raw[i] = ' ' + byte(r.below(95))
		}
		pool = append(pool, raw[:]...)
		pool = append(pool, raw[:]...)
	}
	return pool
}

// values gives one value after another, round and round.
type values struct {
	pool []byte
	at   int
}

func (v *values) next() []byte {
	if v.at+valueLen > len(v.pool) {
		v.at = 0
	}
	value := v.pool[v.at : v.at+valueLen]
	v.at += valueLen
	return value
}
