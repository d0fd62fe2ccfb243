// Package csinode holds the tests of package csi as a whole: a manager with the
// plugin, and a real driver with real mounts, whose every call passes a checker
// of the orchestrator's conduct.
package csinode
