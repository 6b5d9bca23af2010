// Load for the screenshot: an HTTP service that prices orders, and its client.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"sort"
	"time"
)

type item struct {
	Name     string  `json:"name"`
	Price    float64 `json:"price"`
	Quantity int     `json:"quantity"`
}

type order struct {
	Customer  string `json:"customer"`
	Items     []item `json:"items"`
	Signature []byte `json:"signature"`
}

//go:noinline
func priceOrder(o *order) float64 {
	sort.Slice(o.Items, func(a, b int) bool { return o.Items[a].Name < o.Items[b].Name })
	total := 0.0
	for _, one := range o.Items {
		total += one.Price * float64(one.Quantity) * (1 - 0.1*math.Exp(-float64(one.Quantity)))
	}
	return total
}

//go:noinline
func signOrder(o *order) {
	mac := hmac.New(sha256.New, []byte("screenshot"))
	for range 40 {
		for _, one := range o.Items {
			fmt.Fprintf(mac, "%s %.2f %d\n", one.Name, one.Price, one.Quantity)
		}
	}
	o.Signature = mac.Sum(nil)
}

//go:noinline
func writeReceipt(w io.Writer, o *order, total float64) error {
	zipped := gzip.NewWriter(w)
	if err := json.NewEncoder(zipped).Encode(map[string]any{"order": o, "total": total}); err != nil {
		return err
	}
	return zipped.Close()
}

func handleOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	signOrder(&o)
	if err := writeReceipt(w, &o, priceOrder(&o)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func placeOrder(url string, body []byte) {
	response, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		panic(err)
	}
}

func main() {
	server := httptest.NewServer(http.HandlerFunc(handleOrder))
	o := order{Customer: "Ada Lovelace"}
	for i := range 60 {
		o.Items = append(o.Items, item{Name: fmt.Sprintf("item %d", i*7919%60), Price: float64(i) * 1.25, Quantity: i%5 + 1})
	}
	body, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	for start := time.Now(); ; {
		began := time.Now()
		for range 20 {
			placeOrder(server.URL, body)
		}
		// Uses a share of one core that rises and falls, so that the timeline moves.
		share := 0.12 + 0.07*math.Sin(time.Since(start).Seconds()/25)
		time.Sleep(time.Duration(float64(time.Since(began)) * (1/share - 1)))
	}
}
