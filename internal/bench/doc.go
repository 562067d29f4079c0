// Package bench measures Sallyport against the worker that one would write in a
// hundred lines (naive.go): same server, same jobs, same machine, in one
// interleaved session. Only the ratios count; absolute figures move from machine
// to machine and from hour to hour.
//
// The driver, the embedded server and both workers share the machine's cores, as
// they do in the figures that docs/performance.md compares with. The workers are
// processes of their own.
package bench
