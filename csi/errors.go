package csi

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/plugins"
)

var (
	// ErrNodeFull says that the node has as many of the driver's volumes as it
	// can have.
	ErrNodeFull = errors.New("the node has as many volumes of the driver as it can have")
	// ErrInUse says that a volume cannot be expanded while it is in use.
	ErrInUse = errors.New("the volume cannot be expanded while it is in use")
	// ErrInfeasible says that a volume will never get the size that is asked for.
	ErrInfeasible = errors.New("the driver cannot give the volume that size")
)

// method is an RPC of the CSI spec.
type method string

// The RPCs that are called here.
const (
	getPluginInfo       method = "GetPluginInfo"
	getPluginCan        method = "GetPluginCapabilities"
	probe               method = "Probe"
	nodeGetInfo         method = "NodeGetInfo"
	nodeGetCan          method = "NodeGetCapabilities"
	nodeStage           method = "NodeStageVolume"
	nodeUnstage         method = "NodeUnstageVolume"
	nodePublish         method = "NodePublishVolume"
	nodeUnpublish       method = "NodeUnpublishVolume"
	nodeExpand          method = "NodeExpandVolume"
	nodeStats           method = "NodeGetVolumeStats"
	nodeVolumeHealth    method = "NodeGetVolumeHealth"
	nodeStorageHealth   method = "NodeGetStorageHealth"
	controllerGetCan    method = "ControllerGetCapabilities"
	controllerPublish   method = "ControllerPublishVolume"
	controllerUnpublish method = "ControllerUnpublishVolume"
	controllerValidate  method = "ValidateVolumeCapabilities"
	controllerExpand    method = "ControllerExpandVolume"
	controllerCreate    method = "CreateVolume"
	controllerDelete    method = "DeleteVolume"
)

// effect says what a method does to a volume.
type effect int

const (
	reads effect = iota
	makes
	undoes
	expands
)

func (m method) effect() effect {
	switch m {
	case nodeStage, nodePublish, controllerPublish, controllerCreate:
		return makes
	case nodeUnstage, nodeUnpublish, controllerUnpublish, controllerDelete:
		return undoes
	case nodeExpand, controllerExpand:
		return expands
	}
	return reads
}

// outcome is what an answer other than OK means.
type outcome struct {
	class plugins.Class
	pace  plugins.Pace
	// means is what errors.Is finds, nil if the code says no more.
	means error
}

const (
	growing = plugins.PaceGrowing
	flat    = plugins.PaceFlat
	slow    = plugins.PaceSlow
)

// meaning is the table of what codes mean for methods (CSI spec, "Error
// Scheme" and the table of each RPC).
//
// What ends a call without an answer, and codes that drivers give when mount(8)
// or a lower layer fails halfway, say nothing about the volume: it is undone
// before it is forgotten. Codes that the spec gives to a request that was
// refused mean that nothing happened.
func meaning(m method, code codes.Code) outcome {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return lost(m)
	case codes.Aborted: // another call for the volume is under way
		o := lost(m)
		o.pace = flat
		return o
	case codes.Unimplemented:
		if m.effect() == undoes {
			return outcome{plugins.ClassUncertain, slow, nil}
		}
		return outcome{plugins.ClassUnsupported, slow, nil}
	}
	switch m.effect() {
	case makes:
		return meaningOfMake(m, code)
	case undoes:
		return meaningOfUndo(code)
	case expands:
		return meaningOfExpand(code)
	}
	switch code {
	case codes.NotFound, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition:
		return outcome{plugins.ClassTransient, slow, nil}
	}
	return outcome{plugins.ClassTransient, growing, nil}
}

// lost is the meaning of a call whose answer did not come.
func lost(m method) outcome {
	if m.effect() == reads {
		return outcome{plugins.ClassTransient, growing, nil}
	}
	return outcome{plugins.ClassUncertain, growing, nil}
}

func meaningOfMake(m method, code codes.Code) outcome {
	switch code {
	case codes.ResourceExhausted:
		if m == controllerPublish {
			return outcome{plugins.ClassTransient, slow, ErrNodeFull}
		}
		return outcome{plugins.ClassUncertain, growing, nil}
	case codes.AlreadyExists: // it is there, made with other arguments
		return outcome{plugins.ClassUncertain, slow, nil}
	case codes.NotFound, codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition,
		codes.PermissionDenied, codes.Unauthenticated:
		return outcome{plugins.ClassTransient, slow, nil}
	}
	return outcome{plugins.ClassUncertain, growing, nil}
}

func meaningOfUndo(code codes.Code) outcome {
	switch code {
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated:
		return outcome{plugins.ClassUncertain, slow, nil}
	}
	return outcome{plugins.ClassUncertain, growing, nil}
}

func meaningOfExpand(code codes.Code) outcome {
	switch code {
	case codes.FailedPrecondition:
		return outcome{plugins.ClassTransient, slow, ErrInUse}
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return outcome{plugins.ClassPermanent, slow, ErrInfeasible}
	case codes.PermissionDenied, codes.Unauthenticated:
		return outcome{plugins.ClassTransient, slow, nil}
	}
	return outcome{plugins.ClassTransient, growing, nil}
}

// CallError is a call that a driver answered with an error, or did not answer.
// Its class and pace ([plugins.ClassOf], [plugins.PaceOf]) are those of the
// method and code.
type CallError struct {
	// Driver and Method name the call.
	Driver, Method string
	// Code is the answer's code; DeadlineExceeded, Canceled and Unavailable
	// also stand for no answer.
	Code codes.Code
	// Message is the driver's, without the secrets of the request, shortened.
	Message string

	means error
}

// Error names driver, method and code.
func (e *CallError) Error() string {
	text := fmt.Sprintf("CSI driver %s answered %s with %s", e.Driver, e.Method, e.Code)
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Is matches [ErrNodeFull], [ErrInUse] and [ErrInfeasible].
func (e *CallError) Is(target error) bool { return e.means != nil && e.means == target }

// GRPCStatus lets package status find the code.
func (e *CallError) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// maxMessage is how much of a driver's message is passed on.
const maxMessage = 1024

// failed makes an error of what a call returned. secrets are the texts that
// must not be passed on.
func failed(driver string, m method, err error, secrets []string) error {
	s := status.Convert(err)
	if tooLarge(s) {
		s = status.New(codes.Internal, "its answer is larger than what is taken: "+s.Message())
	}
	o := meaning(m, s.Code())
	text := clean(withoutSecrets(s.Message(), secrets), maxMessage)
	return plugins.Paced(o.pace, o.wrap(&CallError{Driver: driver, Method: string(m), Code: s.Code(), Message: text, means: o.means}))
}

// withoutSecrets makes text of one line in which none of the secrets is. They
// are looked for before and after they have become part of a line.
func withoutSecrets(text string, secrets []string) string {
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	text = oneLine(text)
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, oneLine(secret), "***")
	}
	return text
}

// oneLine makes text fit to be shown in a line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// clean makes a driver's text fit to be shown, and short.
func clean(s string, limit int) string { return shorten(oneLine(s), limit) }

// tooLarge reports whether an answer came that was too large to be read: gRPC says
// that with the code of a full node.
func tooLarge(s *status.Status) bool {
	return s.Code() == codes.ResourceExhausted && strings.HasPrefix(s.Message(), "grpc: received message")
}

func (o outcome) wrap(err error) error {
	switch o.class {
	case plugins.ClassTransient:
		return plugins.Transient(err)
	case plugins.ClassPermanent:
		return plugins.Permanent(err)
	case plugins.ClassUnsupported:
		return plugins.Unsupported(err)
	}
	return plugins.Uncertain(err)
}

// answered returns the code with which a driver answered, OK for no error, and
// Unknown for an error that is no answer.
func answered(err error) codes.Code {
	var call *CallError
	switch {
	case err == nil:
		return codes.OK
	case errors.As(err, &call):
		return call.Code
	}
	return codes.Unknown
}
