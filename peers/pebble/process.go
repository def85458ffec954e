package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cost is what the process has cost so far, as the kernel counts it.
type cost struct {
	cpuSeconds     float64
	writeCallBytes uint64
	deviceBytes    uint64
	machineSeconds float64
}

// busySeconds reads how long all CPUs were busy: all but idle (3) and waiting for I/O (4),
// without guests, which user time has already.
func busySeconds() (float64, error) {
	const ticksPerSecond = 100
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	sum := 0.0
	for at, field := range strings.Fields(line)[1:9] {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		if at != 3 && at != 4 {
			sum += ticks
		}
	}
	return sum / ticksPerSecond, nil
}

// field reads a number from one of the files in /proc/self.
func field(file, name string) (uint64, error) {
	text, err := os.ReadFile("/proc/self/" + file)
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("no %s in /proc/self/%s", name, file)
}

func costNow() (cost, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return cost{}, err
	}
	written, err := field("io", "wchar")
	if err != nil {
		return cost{}, err
	}
	device, err := field("io", "write_bytes")
	if err != nil {
		return cost{}, err
	}
	machine, err := busySeconds()
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return cost{seconds(usage.Utime) + seconds(usage.Stime), written, device, machine}, err
}

func (c cost) since(start cost) cost {
	return cost{
		c.cpuSeconds - start.cpuSeconds,
		c.writeCallBytes - start.writeCallBytes,
		c.deviceBytes - start.deviceBytes,
		c.machineSeconds - start.machineSeconds,
	}
}

// otherCores gives the cores that others used meanwhile.
func (c cost) otherCores(seconds float64) float64 {
	return max((c.machineSeconds-c.cpuSeconds)/seconds, 0)
}

func resetPeakRSS() error {
	return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

func peakRSS() (uint64, error) {
	kib, err := field("status", "VmHWM")
	return kib * 1024, err
}

// diskBytes gives what the files of a directory take on the disk.
func diskBytes(dir string) (uint64, error) {
	sum := uint64(0)
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		// A file may go between the listing and the look.
		if info, err := entry.Info(); err == nil {
			sum += uint64(info.Sys().(*syscall.Stat_t).Blocks) * 512
		}
		return nil
	})
	return sum, err
}
