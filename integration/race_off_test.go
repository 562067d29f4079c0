//go:build !race

package integration

// raceEnabled builds the services with the race detector too.
const raceEnabled = false
