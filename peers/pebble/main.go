// Command pebble runs the workloads of the peers on Pebble.
//
// It is the Go counterpart of peers/driver: the same phases, seeds, operations and fields of the
// results, so that one program can read both. Whoever changes one changes the other.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

type arguments struct {
	dir    string
	phases []string
	num    uint64
	reads  uint64
}

func parse(args []string) (arguments, error) {
	parsed := arguments{num: 1_000_000, reads: 1_000_000}
	for len(args) > 0 {
		if len(args) == 1 {
			return parsed, fmt.Errorf("%s needs a value", args[0])
		}
		name, value := args[0], args[1]
		args = args[2:]
		var err error
		switch name {
		case "--dir":
			parsed.dir = value
		case "--phases":
			parsed.phases = strings.Split(value, ",")
		case "--num":
			parsed.num, err = strconv.ParseUint(value, 10, 64)
		case "--reads":
			parsed.reads, err = strconv.ParseUint(value, 10, 64)
		default:
			err = fmt.Errorf("unknown option `%s`", name)
		}
		if err != nil {
			return parsed, err
		}
	}
	if parsed.dir == "" || len(parsed.phases) == 0 || parsed.num == 0 {
		return parsed, errors.New("usage: --dir DIR --phases A,B [--num N] [--reads N]")
	}
	return parsed, nil
}

func main() {
	args, err := parse(os.Args[1:])
	if err == nil {
		err = run(args)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "pebble: %v\n", err)
		os.Exit(1)
	}
}
