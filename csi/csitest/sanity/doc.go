// Package sanity holds csi-sanity, the conformance suite of the Kubernetes CSI
// project, against the driver of package csitest. It has no code of its own
// besides the test, and is a module of its own so that the suite's test
// framework stays out of the library's requirements: the driver is built from
// the module above and runs as a process, and the suite knows it by its socket
// only.
package sanity
