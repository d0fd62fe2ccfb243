//go:build race

package reconciler

// planStride thins out the enumeration where the race detector slows it down:
// a pure function has no races.
const planStride = 7
