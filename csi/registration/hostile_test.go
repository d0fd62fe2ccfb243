package registration

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/csi/registration/registrationtest"
)

func TestHostileAnswers(t *testing.T) {
	b := begin(t)
	for name, change := range map[string]func(*Info){
		"relative":  func(i *Info) { i.Endpoint = "csi.sock" },
		"dotdot":    func(i *Info) { i.Endpoint = "/var/../etc/s" },
		"newline":   func(i *Info) { i.Name = "a\nb" },
		"noname":    func(i *Info) { i.Name = "" },
		"notype":    func(i *Info) { i.Type = "" },
		"longname":  func(i *Info) { i.Name = strings.Repeat("x", 1000) },
		"versions":  func(i *Info) { i.Versions = slices.Repeat([]string{"1.0.0"}, 1000) },
		"version":   func(i *Info) { i.Versions = []string{"1.0.0\x00"} },
		"longtype":  func(i *Info) { i.Type = strings.Repeat("T", 1000) },
		"separator": func(i *Info) { i.Name = "a\u2028b" },
	} {
		i := info("d")
		change(&i)
		p := plugin(t, b.path(name), i)
		refused(t, p, ErrInvalid.Error())
		if s := b.waitState(b.path(name), Failed); len(s.LastError) > maxText+3 || !s.Info.equal(Info{}) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	// Answers that do not even arrive.
	huge := info("d")
	huge.Name = strings.Repeat("x", 1<<20)
	plugin(t, b.path("huge"), huge)
	has(t, b.waitState(b.path("huge"), Failed).LastError, "ResourceExhausted")
	raw(t, b.path("invalid"), "\x0a\x09CSIPlugin\x12\x02a\xff\x1a\x02/x")
	has(t, b.waitState(b.path("invalid"), Failed).LastError, "Internal", "UTF-8")
	raw(t, b.path("noproto"), "\xff\xff\xff")
	has(t, b.waitState(b.path("noproto"), Failed).LastError, "Internal")
	p, err := registrationtest.StartHeld(b.path("error"), registrationtest.Info(info("d")))
	must(t, err)
	t.Cleanup(p.Kill)
	p.FailInfo(1<<20, status.Error(codes.Internal, "a\nb\x1b[2J"+strings.Repeat("z", 4000)))
	p.Release()
	if s := b.waitState(b.path("error"), Failed); len(s.LastError) > maxText+100 || strings.ContainsAny(s.LastError, "\n\x1b") {
		t.Errorf("%q", s.LastError)
	}
	b.csi.none(t)
}

// asIs sends messages as they are.
type asIs struct{ answer string }

func (c asIs) Marshal(any) ([]byte, error) { return []byte(c.answer), nil }
func (c asIs) Unmarshal([]byte, any) error { return nil }
func (c asIs) Name() string                { return "proto" }
func (c asIs) answers(_ any, s grpc.ServerStream) error {
	if err := s.RecvMsg(nil); err != nil {
		return err
	}
	return s.SendMsg(struct{}{}) // nil would not reach the codec
}

// raw answers every call with bytes that need not be a message.
func raw(t testing.TB, path, answer string) {
	t.Helper()
	l, err := registrationtest.Listen(path)
	must(t, err)
	c := asIs{answer}
	s := grpc.NewServer(grpc.ForceServerCodec(c), grpc.UnknownServiceHandler(c.answers))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-ended
	})
}

func TestNotAPlugin(t *testing.T) {
	b := begin(t)
	l, err := registrationtest.Listen(b.path("s"))
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220 mail.example ESMTP\r\n"))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	has(t, b.waitState(b.path("s"), Failed).LastError, "Unavailable")
}
