// Package config turns flags, the environment and a YAML file into one validated
// Config.
//
// Each setting has one key. It is a key of the file, the flag of the same name
// with dashes, and the environment variable SALLYPORT_ plus the key in capitals.
// A later source wins: defaults, then the file, then the environment, then flags.
//
// Load reports every mistake of every source at once, as MistakesError, in the
// operator's words: where it stands, the key, the value, and what is expected.
// The package reads no environment of its own and knows nothing of NATS or of
// sandboxes. Everything here runs at start, on one goroutine.
package config
