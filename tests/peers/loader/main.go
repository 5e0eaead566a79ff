// loader is an independent asynchronous SMB client (github.com/cloudsoda/go-smb2): it keeps a number of READs
// outstanding on one connection for a while and prints what it did. It measures nothing of the server; run.py does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudsoda/go-smb2"
)

func main() {
	address := flag.String("address", "", "HOST:PORT")
	share := flag.String("share", "", "share")
	name := flag.String("file", "", "file in the share")
	size := flag.Int("size", 8192, "bytes of a READ")
	depth := flag.Int("depth", 32, "READs outstanding")
	span := flag.Int64("span", 1<<30, "bytes of the file to read from")
	seconds := flag.Float64("seconds", 3, "how long")
	flag.Parse()
	if err := load(*address, *share, *name, *size, *depth, *span, *seconds); err != nil {
		fmt.Fprintln(os.Stderr, "loader:", err)
		os.Exit(1)
	}
}

func load(address, share, name string, size, depth int, span int64, seconds float64) error {
	// The password comes by the environment: command lines are visible to everybody.
	dialer := &smb2.Dialer{
		MaxCreditBalance: 512,
		Initiator:        &smb2.NTLMInitiator{User: os.Getenv("LOADER_USER"), Password: os.Getenv("LOADER_PASSWORD")},
	}
	session, err := dialer.Dial(context.Background(), address)
	if err != nil {
		return err
	}
	defer session.Logoff()
	tree, err := session.Mount(share)
	if err != nil {
		return err
	}
	defer tree.Umount()
	file, err := tree.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()

	var operations atomic.Int64
	var failure atomic.Pointer[error]
	run := func(until time.Time) {
		var group sync.WaitGroup
		for worker := range depth {
			group.Add(1)
			go func() {
				defer group.Done()
				chance := rand.New(rand.NewSource(int64(worker)))
				buffer := make([]byte, size)
				for time.Now().Before(until) && failure.Load() == nil {
					offset := chance.Int63n(span/int64(size)) * int64(size)
					if n, err := file.ReadAt(buffer, offset); err != nil || n != size {
						err = fmt.Errorf("READ of %d at %d gave %d: %w", size, offset, n, err)
						failure.Store(&err)
						return
					}
					operations.Add(1)
				}
			}()
		}
		group.Wait()
	}
	run(time.Now().Add(300 * time.Millisecond)) // warm up
	operations.Store(0)
	fmt.Println("begin")
	start := time.Now()
	run(start.Add(time.Duration(seconds * float64(time.Second))))
	elapsed := time.Since(start).Seconds()
	if err := failure.Load(); err != nil {
		return *err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"operations": operations.Load(), "bytes": operations.Load() * int64(size), "seconds": elapsed,
	})
}
