package registration

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Types of plugins that the kubelet knows.
const (
	CSIPlugin    = "CSIPlugin"
	DevicePlugin = "DevicePlugin"
	DRAPlugin    = "DRAPlugin"
)

// Bounds on what a plugin says about itself.
const (
	// MaxNameLength is in bytes. It holds the longest extended resource name
	// (a 253 byte domain, a slash, 63 bytes) and is far above the 63 of a CSI
	// driver.
	MaxNameLength = 320
	// MaxEndpointLength is PATH_MAX without its NUL.
	MaxEndpointLength = 4095
	// MaxVersions is how many versions a plugin may list, each at most
	// MaxVersionLength bytes long.
	MaxVersions      = 64
	MaxVersionLength = 128

	maxTypeLength = 64
)

var (
	// ErrUnavailable is in the errors of [DialSocket] when nobody listens.
	ErrUnavailable = errors.New("nobody listens on the socket")
	// ErrInvalid is in the errors of [Info.Check].
	ErrInvalid = errors.New("invalid plugin info")
)

// Info is what a plugin says about itself.
type Info struct {
	// Type chooses the handler, e.g. [CSIPlugin].
	Type string
	// Name identifies the plugin within its type: a CSI driver's name, a
	// device plugin's resource.
	Name string
	// Endpoint is the absolute path of the socket on which the plugin serves.
	Endpoint string
	// Versions are the versions of its API that it speaks, as it lists them.
	Versions []string
}

// Check reports whether the fields may be used: there is a type and a name,
// the endpoint is an absolute path without "..", everything is printable UTF-8
// without spaces (an endpoint may have spaces) and within the bounds. The
// error wraps [ErrInvalid] and quotes what it shows.
func (i Info) Check() error {
	if err := checkWord("type", i.Type, maxTypeLength); err != nil {
		return err
	}
	if err := checkWord("name", i.Name, MaxNameLength); err != nil {
		return err
	}
	if err := checkEndpoint(i.Endpoint); err != nil {
		return err
	}
	if len(i.Versions) > MaxVersions {
		return fmt.Errorf("%w: %d versions, at most %d are accepted", ErrInvalid, len(i.Versions), MaxVersions)
	}
	for _, v := range i.Versions {
		if err := checkWord("version", v, MaxVersionLength); err != nil {
			return err
		}
	}
	return nil
}

// equal reports whether both say the same.
func (i Info) equal(o Info) bool {
	return i.Type == o.Type && i.Name == o.Name && i.Endpoint == o.Endpoint && slices.Equal(i.Versions, o.Versions)
}

func checkWord(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: no %s", ErrInvalid, what)
	case len(s) > limit:
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are accepted", ErrInvalid, what, len(s), limit)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: the %s %q is not UTF-8", ErrInvalid, what, s)
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }):
		return fmt.Errorf("%w: the %s %q has characters that cannot be shown", ErrInvalid, what, s)
	}
	return nil
}

func checkEndpoint(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%w: no endpoint", ErrInvalid)
	case len(path) > MaxEndpointLength:
		return fmt.Errorf("%w: the endpoint has %d bytes, at most %d are accepted", ErrInvalid, len(path), MaxEndpointLength)
	case !utf8.ValidString(path) || strings.ContainsFunc(path, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return fmt.Errorf("%w: the endpoint %s has characters that cannot be shown", ErrInvalid, quoted(path))
	case !filepath.IsAbs(path):
		return fmt.Errorf("%w: the endpoint %s is not an absolute path", ErrInvalid, quoted(path))
	case slices.Contains(strings.Split(filepath.ToSlash(path), "/"), ".."):
		return fmt.Errorf("%w: the endpoint %s leads through \"..\"", ErrInvalid, quoted(path))
	}
	return nil
}

// Identity tells one socket file from another at the same path.
type Identity struct {
	Device, Inode uint64
	// Birth is when the file was made, the zero time where the file system
	// does not know. Changed is when the inode last changed (ctime).
	Birth, Changed time.Time
}

// Same reports whether both are of one file. The inode of a removed file may
// be given to the next one at once, so the times count too: the birth time or,
// where there is none, the time of change, for which a change of owner or mode
// counts as a new file.
func (i Identity) Same(o Identity) bool {
	if i.Device != o.Device || i.Inode != o.Inode || i.Birth.IsZero() != o.Birth.IsZero() {
		return false
	}
	if !i.Birth.IsZero() {
		return i.Birth.Equal(o.Birth)
	}
	return i.Changed.Equal(o.Changed)
}

// Instance is one registration of a plugin. Plugins that are registered
// without a folder have the zero value in Socket and File.
type Instance struct {
	Info
	// Socket is the path of the socket in the watched folder; File is which
	// file was there.
	Socket string
	File   Identity
	// Generation is unique within a [Watcher] and grows: of two instances
	// behind one path, the greater is the newer.
	Generation uint64
}

func (i Instance) clone() Instance {
	i.Versions = slices.Clone(i.Versions)
	return i
}

// Handler takes the plugins of one type. Its methods are called from several
// goroutines; the package comment says in which order. It owns what it is
// given.
type Handler interface {
	// Validate says whether such a plugin would be accepted. It must not block.
	// The plugin is told the text of the error: it must hold no secret.
	Validate(info Info) error
	// Register puts the instance to use. It may call the plugin; it returns
	// soon after ctx has ended (the watcher stops, the socket has gone or was
	// replaced, the deadline of [Config] has passed). After an error nothing
	// of the instance is registered. The plugin is told the text of the error:
	// it must hold no secret.
	Register(ctx context.Context, instance Instance) error
	// Deregister says that this instance, and no other of the same name, has
	// gone. It must not block for long: the next attempt at the same path waits
	// for it, and so does the end of Run.
	Deregister(instance Instance)
}

// maxText bounds texts that came from a plugin or go to one, in bytes.
const maxText = 512

// bounded makes a text of any origin fit to be shown and sent: valid UTF-8 in
// one line, not too long.
func bounded(s string) string {
	long := len(s) > maxText
	if long {
		s = s[:maxText]
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	if long {
		s += "..."
	}
	return s
}

// quoted is for texts of a plugin within an error.
func quoted(s string) string {
	if len(s) > 128 {
		return fmt.Sprintf("%q...", s[:128])
	}
	return fmt.Sprintf("%q", s)
}
