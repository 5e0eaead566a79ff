// loader is an independent asynchronous SMB client (github.com/cloudsoda/go-smb2): it keeps a number of READs or WRITEs
// outstanding on one connection for a while and prints what it did. It measures nothing of the server; smb.py does.
// With -stream it is instead the two ends of a plain TCP stream, the measure of what the machine can move.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
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
	write := flag.Bool("write", false, "WRITE instead of READ")
	serve := flag.Bool("serve-stream", false, "send a stream in pieces of -size to whoever connects")
	stream := flag.Bool("stream", false, "receive a stream from -address")
	flag.Parse()
	var err error
	switch {
	case *serve:
		err = serveStream(*size)
	case *stream:
		err = receiveStream(*address, *seconds)
	default:
		err = load(*address, *share, *name, *size, *depth, *span, *seconds, *write)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loader:", err)
		os.Exit(1)
	}
}

func load(address, share, name string, size, depth int, span int64, seconds float64, write bool) error {
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
	file, err := tree.OpenFile(name, os.O_RDWR, 0)
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
					n, err := 0, error(nil)
					if write {
						n, err = file.WriteAt(buffer, offset)
					} else {
						n, err = file.ReadAt(buffer, offset)
					}
					if err != nil || n != size {
						err = fmt.Errorf("%d bytes at %d: %d were done: %w", size, offset, n, err)
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
	return report(operations.Load(), operations.Load()*int64(size), elapsed)
}

// report stays connected until standard input ends: a server may account for a connection only as long as it lasts.
func report(operations, bytes int64, seconds float64) error {
	err := json.NewEncoder(os.Stdout).Encode(map[string]any{
		"operations": operations, "bytes": bytes, "seconds": seconds,
	})
	io.Copy(io.Discard, os.Stdin)
	return err
}
