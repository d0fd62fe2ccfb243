package csi

import (
	"maps"
	"slices"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// DriverState says how far a connection to a driver is.
type DriverState string

// The states.
const (
	// DriverWaiting: nobody answers at the address, or the directory does not
	// run.
	DriverWaiting DriverState = "waiting"
	// DriverAsking: it is connected, and asked what it is.
	DriverAsking DriverState = "asking"
	// DriverReady: it can be used.
	DriverReady DriverState = "ready"
	// DriverRefused: its answers rule it out. It is tried again all the same.
	DriverRefused DriverState = "refused"
)

// DriverStatus is what is known of a driver.
type DriverStatus struct {
	// Name is the driver's name.
	Name string `json:"name"`
	// Instances are the addresses at which it is known, the newest first.
	Instances []InstanceStatus `json:"instances,omitempty"`
	// Node is what it says of the node; nil before it has said anything.
	Node *NodeInfo `json:"node,omitempty"`
	// AwaySince is since when its node service has not been ready.
	AwaySince *time.Time `json:"awaySince,omitempty"`
	// NodeCapabilities and ControllerCapabilities are those of the instances in
	// use, by name and sorted.
	NodeCapabilities       []string `json:"nodeCapabilities,omitempty"`
	ControllerCapabilities []string `json:"controllerCapabilities,omitempty"`
}

// InstanceStatus is one address of a driver.
type InstanceStatus struct {
	// Endpoint is the path of the socket.
	Endpoint string `json:"endpoint"`
	// Registration is the path of the socket in the registration folder; empty
	// for an endpoint that was named.
	Registration string `json:"registration,omitempty"`
	// Node and Controller say for what it is in use now.
	Node       bool `json:"node,omitempty"`
	Controller bool `json:"controller,omitempty"`
	// Generation is that of the connection; zero without one.
	Generation uint64 `json:"generation,omitempty"`
	// State is how far it is, Since when that began.
	State DriverState `json:"state"`
	Since time.Time   `json:"since"`
	// LastError is why it is not ready.
	LastError string `json:"lastError,omitempty"`
	// Version is the vendor's.
	Version string `json:"version,omitempty"`
	// Calls are under way on the connection.
	Calls int `json:"calls,omitempty"`
}

// Status returns what is known of the drivers, sorted by name. Drivers that have
// gone are listed until their node info was withdrawn. It does no I/O.
func (d *Drivers) Status() []DriverStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]DriverStatus, 0, len(d.entries))
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		e := d.entries[name]
		gone := len(e.instances) == 0 && (e.info.ID == "" || d.config.Clock.Now().Sub(e.away) >= d.config.Grace)
		if !gone {
			list = append(list, d.status(e))
		}
	}
	return list
}

func (d *Drivers) status(e *entry) DriverStatus {
	s := DriverStatus{Name: e.name}
	if e.info.ID != "" {
		info := e.info.clone()
		s.Node = &info
	}
	if !e.away.IsZero() {
		away := e.away
		s.AwaySince = &away
	}
	node, _ := d.pick(e.name, servesNode, true)
	controller, _ := d.pick(e.name, servesController, true)
	if node != nil {
		s.NodeCapabilities = named(node.nodeCan, csipb.NodeServiceCapability_RPC_Type.String)
	}
	if controller != nil {
		s.ControllerCapabilities = named(controller.controllerCan, csipb.ControllerServiceCapability_RPC_Type.String)
	}
	for _, i := range slices.Backward(e.instances) {
		for _, l := range i.links {
			one := InstanceStatus{
				Endpoint: l.path, Registration: i.key.socket, State: l.state, Since: l.since, Version: l.vendor,
			}
			if l.lastError != nil {
				one.LastError = l.lastError.Error()
			}
			if l.current != nil {
				one.Generation, one.Calls = l.current.generation, l.conn.underway()
				one.Node, one.Controller = l.current == node, l.current == controller
			}
			s.Instances = append(s.Instances, one)
		}
	}
	return s
}

// named are the names of capabilities, sorted; unknown ones are numbers.
func named[T ~int32](can capabilities[T], name func(T) string) []string {
	names := make([]string, 0, len(can))
	for one := range can {
		names = append(names, name(one))
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
