// Package service makes a NATS micro service: endpoints, and the answers that
// `nats micro ls|info|stats` ask for. The gateway, the reaper and the worker serve
// theirs with it.
//
// The micro library's own service answers on whatever subject a question names for
// it, which lends a service's rights to everybody who may ask. What holds here:
//
//   - Nothing is sent anywhere, errors included, before the reply subject has passed
//     the reply rule. A request whose reply subject does not is met with silence, and
//     counted. An endpoint cannot forget this: its function is not called before.
//   - What waits at an endpoint, what is in work at once, and how long one request
//     takes have bounds.
//   - The end takes nothing more, and finishes what has been taken.
//
// A Service is safe for concurrent use; Run is called once.
package service
