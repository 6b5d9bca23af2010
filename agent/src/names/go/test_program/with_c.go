//go:build cgo

package main

/*
static int twice(int x) { return 2 * x; }
*/
import "C"

func use() { C.twice(1) }
