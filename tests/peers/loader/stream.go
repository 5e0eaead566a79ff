package main

import (
	"fmt"
	"net"
	"time"
)

// serveStream prints its port and sends bytes in pieces of size to one peer after the other, until it is ended.
func serveStream(size int) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	buffer := make([]byte, size)
	for {
		peer, err := listener.Accept()
		if err != nil {
			return err
		}
		for err == nil {
			_, err = peer.Write(buffer)
		}
		peer.Close()
	}
}

// receiveStream receives for a while and says how much.
func receiveStream(address string, seconds float64) error {
	peer, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer peer.Close()
	buffer := make([]byte, 1<<20)
	receive := func(until time.Time) (int64, error) {
		total := int64(0)
		for time.Now().Before(until) {
			n, err := peer.Read(buffer)
			if err != nil {
				return total, err
			}
			total += int64(n)
		}
		return total, nil
	}
	if _, err := receive(time.Now().Add(300 * time.Millisecond)); err != nil {
		return err
	}
	fmt.Println("begin")
	start := time.Now()
	bytes, err := receive(start.Add(time.Duration(seconds * float64(time.Second))))
	if err != nil {
		return err
	}
	return report(0, bytes, time.Since(start).Seconds())
}
