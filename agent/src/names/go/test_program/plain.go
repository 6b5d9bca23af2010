//go:build !cgo

package main

func use() {}
