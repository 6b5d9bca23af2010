// A small service: orders in JSON are read, priced, sorted, rendered and packed by two workers, over and over.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand"
	"sort"
	"strings"
)

type line struct {
	Sku   string `json:"sku"`
	Count int    `json:"count"`
}

type order struct {
	Number   int    `json:"number"`
	Customer string `json:"customer"`
	Lines    []line `json:"lines"`
}

func newOrder(number int, random *rand.Rand) order {
	one := order{Number: number, Customer: fmt.Sprintf("customer %d", number%97)}
	for range 30 {
		one.Lines = append(one.Lines, line{fmt.Sprintf("sku-%d", random.Intn(5000)), 1 + random.Intn(8)})
	}
	return one
}

func (l line) price() int {
	digest := sha256.Sum256([]byte(l.Sku))
	return l.Count * int(binary.BigEndian.Uint16(digest[:]))
}

func (o order) render(out *bytes.Buffer) {
	sort.Slice(o.Lines, func(i, j int) bool { return o.Lines[i].price() > o.Lines[j].price() })
	fmt.Fprintln(out, strings.ToUpper(o.Customer))
	for _, one := range o.Lines {
		fmt.Fprintf(out, "%12s %8d\n", one.Sku, one.price())
	}
}

func serve(seed int64, done chan<- error) {
	random := rand.New(rand.NewSource(seed))
	for number := 0; ; number += 20 {
		var orders, read []order
		for i := range 20 {
			orders = append(orders, newOrder(number+i, random))
		}
		text, err := json.Marshal(orders)
		if err == nil {
			err = json.Unmarshal(text, &read)
		}
		if err != nil {
			done <- err
			return
		}
		var out, packed bytes.Buffer
		for _, one := range read {
			one.render(&out)
		}
		writer := gzip.NewWriter(&packed)
		writer.Write(out.Bytes())
		writer.Close()
	}
}

func main() {
	done := make(chan error)
	go serve(1, done)
	go serve(2, done)
	panic(<-done)
}
