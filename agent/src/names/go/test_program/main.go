// Prints the names that Go's runtime finds for addresses of this program. Tests compare them with those that the agent
// reads from the program's table.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"sort"
	"strings"
	"text/template"
)

var out = bufio.NewWriter(os.Stdout)

// Formats a frame. Go does not export the first line of a function, so it is read by reflection.
func line(frame runtime.Frame) string {
	start := reflect.ValueOf(frame).FieldByName("startLine")
	first := int64(0)
	if start.IsValid() {
		first = start.Int()
	}
	return fmt.Sprintf("%s\t%s\t%d\t%d", frame.Function, frame.File, frame.Line, first)
}

// Prints the functions on the stack, each after the calls that were inlined into it.
//
//go:noinline
func stack() {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	calls := []string{}
	pc := uintptr(0)
	for {
		frame, more := frames.Next()
		if len(calls) == 0 {
			pc = frame.PC
		}
		calls = append(calls, line(frame))
		if frame.Func != nil {
			fmt.Fprintf(out, "stack\t%x\t%s\n", pc, strings.Join(calls, "\t"))
			calls = calls[:0]
		}
		if !more {
			return
		}
	}
}

func one() { two() }
func two() { three(); three() }
func three() {
	if 0 < len(os.Args) {
		four[int]()
	}
}
func four[T any]() { stack() }

type list[T any] []T

func (l list[T]) Len() int           { return len(l) }
func (l list[T]) Less(i, j int) bool { one(); return i < j }
func (l list[T]) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }

type writer struct{}

func (writer) Write(bytes []byte) (int, error) { stack(); return len(bytes), nil }

func (writer) MarshalJSON() ([]byte, error) { one(); return []byte("1"), nil }

func (writer) String() string { func() { two() }(); return "" }

func stacks() {
	one()
	defer one()
	sort.Sort(list[int]{3, 2, 1})
	sort.Slice([]int{3, 2, 1}, func(i, j int) bool { stack(); return i < j })
	json.NewEncoder(writer{}).Encode(map[string]writer{"a": {}})
	fmt.Fprintln(writer{}, 1, writer{})
	regexp.MustCompile("a+").ReplaceAllStringFunc("baab", func(s string) string { one(); return s })
	strings.Map(func(r rune) rune { two(); return r }, "ab")
	template.Must(template.New("").Parse("{{.}}")).Execute(writer{}, writer{})
	io.Copy(writer{}, bytes.NewReader([]byte("a")))
	done := make(chan bool)
	go func() { defer close(done); one() }()
	<-done
}

func main() {
	base := uintptr(0)
	self, _ := os.Readlink("/proc/self/exe")
	maps, _ := os.ReadFile("/proc/self/maps")
	for _, text := range strings.Split(string(maps), "\n") {
		var start, end uintptr
		var rights string
		fmt.Sscanf(text, "%x-%x %s", &start, &end, &rights)
		if !strings.HasSuffix(text, self) {
			continue
		}
		if base == 0 {
			base = start
			fmt.Fprintf(out, "base\t%x\n", base)
		}
		for pc := start; strings.Contains(rights, "x") && pc < end-1; pc += 61 {
			function, next := runtime.FuncForPC(pc), runtime.FuncForPC(pc+1)
			if function == nil {
				fmt.Fprintf(out, "none\t%x\n", pc)
			} else if next != nil && next.Entry() != pc+1 {
				// CallersFrames takes return addresses, and looks up the byte before each of them.
				frame, _ := runtime.CallersFrames([]uintptr{pc + 1}).Next()
				fmt.Fprintf(out, "leaf\t%x\t%s\n", pc, line(frame))
			}
		}
	}
	stacks()
	use()
	out.Flush()
}
