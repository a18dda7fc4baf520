// An open-loop load: requests are due at fixed moments, whatever the server does, and the latency of each is counted
// from the moment it was due. A server that stalls is therefore charged for everything that piled up meanwhile, which
// a load that waits for answers before it asks again would leave out.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	address := flag.String("address", "127.0.0.1:8080", "host and port")
	path := flag.String("path", "/v1/pets", "what to get")
	key := flag.String("key", "", "the API key")
	rate := flag.Float64("rate", 1000, "requests per second")
	seconds := flag.Float64("seconds", 5, "how long")
	connections := flag.Int("connections", 64, "connections to spread them over")
	flag.Parse()

	total := int64(*rate * *seconds)
	gap := time.Duration(float64(time.Second) / *rate)
	request := []byte("GET " + *path + " HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer " + *key + "\r\n\r\n")
	latencies := make([]time.Duration, total)
	var next, failed atomic.Int64
	var all sync.WaitGroup
	begin := time.Now().Add(100 * time.Millisecond)
	for range make([]struct{}, *connections) {
		connection, err := net.Dial("tcp", *address)
		if err != nil {
			log.Fatal(err)
		}
		all.Add(1)
		go func() {
			defer all.Done()
			reader := bufio.NewReader(connection)
			for {
				number := next.Add(1) - 1
				if number >= total {
					return
				}
				due := begin.Add(time.Duration(number) * gap)
				time.Sleep(time.Until(due))
				if _, err := connection.Write(request); err != nil {
					log.Fatal(err)
				}
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					log.Fatal(err)
				}
				if response.StatusCode != http.StatusOK {
					failed.Add(1)
				}
				if _, err := reader.Discard(int(response.ContentLength)); err != nil {
					log.Fatal(err)
				}
				latencies[number] = time.Since(due)
			}
		}()
	}
	all.Wait()
	took := time.Since(begin).Seconds()
	sort.Slice(latencies, func(i, j int) bool { return latencies[i] < latencies[j] })
	at := func(share float64) float64 {
		return float64(latencies[int(float64(total-1)*share)].Microseconds()) / 1000
	}
	json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"requests": float64(total), "failed": float64(failed.Load()), "per_second": float64(total) / took,
		"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1),
	})
}
