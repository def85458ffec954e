package main

import (
	"math"
	"math/bits"
)

const (
	subBits = 6
	sub     = 1 << subBits
	buckets = ((64 - subBits) + 1) * sub
)

// histogram counts nanoseconds by bucket: each power of two is cut into 64 of them.
type histogram struct {
	counts [buckets]uint64
	count  uint64
	max    uint64
}

func bucket(nanos uint64) int {
	if nanos < sub {
		return int(nanos)
	}
	shift := 63 - bits.LeadingZeros64(nanos) - subBits
	return shift<<subBits + int(nanos>>shift)
}

// upper gives the largest number of a bucket.
func upper(bucket int) uint64 {
	if bucket < sub {
		return uint64(bucket)
	}
	shift := bucket>>subBits - 1
	return (uint64(bucket&(sub-1))+sub+1)<<shift - 1
}

func (h *histogram) add(nanos uint64) {
	h.counts[bucket(nanos)]++
	h.count++
	h.max = max(h.max, nanos)
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.count += other.count
	h.max = max(h.max, other.max)
}

// percentile gives the latency that a share of the operations stays within.
func (h *histogram) percentile(share float64) uint64 {
	rank := max(uint64(math.Ceil(float64(h.count)*share)), 1)
	seen := uint64(0)
	for i, n := range h.counts {
		seen += n
		if seen >= rank {
			return min(upper(i), h.max)
		}
	}
	return h.max
}
