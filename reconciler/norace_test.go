//go:build !race

package reconciler

const planStride = 1
