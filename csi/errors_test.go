package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/plugins"
)

// kinds sorts the methods by what they do to a volume.
var kinds = map[string][]method{
	"read": {
		getPluginInfo, getPluginCan, probe, nodeGetInfo, nodeGetCan, nodeStats, nodeVolumeHealth, nodeStorageHealth,
		controllerGetCan, controllerValidate,
	},
	"make":   {nodeStage, nodePublish, controllerCreate},
	"attach": {controllerPublish},
	"undo":   {nodeUnstage, nodeUnpublish, controllerUnpublish, controllerDelete},
	"expand": {nodeExpand, controllerExpand},
}

// table says what each code means: first the class (T transient, P permanent, X
// unsupported, U uncertain), then the pace (g growing, f flat, s slow).
const table = `
code                 read  make  attach  undo  expand
Canceled             Tg    Ug    Ug      Ug    Ug
Unknown              Tg    Ug    Ug      Ug    Tg
InvalidArgument      Ts    Ts    Ts      Us    Ps,infeasible
DeadlineExceeded     Tg    Ug    Ug      Ug    Ug
NotFound             Ts    Ts    Ts      Ug    Ps,infeasible
AlreadyExists        Tg    Us    Us      Ug    Tg
PermissionDenied     Ts    Ts    Ts      Us    Ts
ResourceExhausted    Tg    Ug    Ts,full Ug    Tg
FailedPrecondition   Ts    Ts    Ts      Us    Ts,inUse
Aborted              Tf    Uf    Uf      Uf    Uf
OutOfRange           Tg    Ts    Ts      Us    Ps,infeasible
Unimplemented        Xs    Xs    Xs      Us    Xs
Internal             Tg    Ug    Ug      Ug    Tg
Unavailable          Tg    Ug    Ug      Ug    Ug
DataLoss             Tg    Ug    Ug      Ug    Tg
Unauthenticated      Ts    Ts    Ts      Us    Ts
Code(99)             Tg    Ug    Ug      Ug    Tg
`

func TestMeaningOfEachCode(t *testing.T) {
	t.Parallel()
	classes := map[byte]plugins.Class{
		'T': plugins.ClassTransient, 'P': plugins.ClassPermanent, 'X': plugins.ClassUnsupported, 'U': plugins.ClassUncertain,
	}
	paces := map[byte]plugins.Pace{'g': plugins.PaceGrowing, 'f': plugins.PaceFlat, 's': plugins.PaceSlow}
	sentinels := map[string]error{"full": ErrNodeFull, "inUse": ErrInUse, "infeasible": ErrInfeasible}
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Fields(line); len(cells) > 0 {
			rows[cells[0]] = cells[1:]
		}
	}
	all := []codes.Code{99}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		all = append(all, c)
	}
	for _, code := range all {
		row := rows[code.String()]
		if len(row) != 5 {
			t.Fatalf("the table has no row for %s", code)
		}
		for i, kind := range rows["code"] {
			want, means, _ := strings.Cut(row[i], ",")
			for _, m := range kinds[kind] {
				err := fmt.Errorf("mount volume: %w", failed(fakeName, m, status.Error(code, "why"), nil))
				for _, e := range []error{err, errors.Join(err), fmt.Errorf("again: %w", err)} {
					if got := plugins.ClassOf(e); got != classes[want[0]] {
						t.Errorf("%s with %s: class %s, want %s", m, code, got, classes[want[0]])
					}
					if got := plugins.PaceOf(e); got != paces[want[1]] {
						t.Errorf("%s with %s: pace %d, want %d", m, code, got, paces[want[1]])
					}
					if answered(e) != code || status.Code(e) != code {
						t.Errorf("%s with %s: code %s", m, code, answered(e))
					}
					for name, sentinel := range sentinels {
						if errors.Is(e, sentinel) != (name == means) {
							t.Errorf("%s with %s: is %q: %v", m, code, sentinel, errors.Is(e, sentinel))
						}
					}
				}
			}
		}
	}
}

// TestErrorsThatAreNoAnswers come from gRPC or a context.
func TestErrorsThatAreNoAnswers(t *testing.T) {
	t.Parallel()
	for err, code := range map[error]codes.Code{
		context.DeadlineExceeded:                        codes.Unknown, // never bare from gRPC
		status.FromContextError(context.Canceled).Err(): codes.Canceled,
		errors.New("bare"):                              codes.Unknown,
	} {
		got := failed(fakeName, nodeStage, err, nil)
		if answered(got) != code || plugins.ClassOf(got) != plugins.ClassUncertain {
			t.Errorf("%v: %s, %s", err, answered(got), plugins.ClassOf(got))
		}
	}
	if answered(nil) != codes.OK || answered(errors.New("x")) != codes.Unknown {
		t.Error("what is answered")
	}
}

func TestCallErrorSaysWhoAndWhat(t *testing.T) {
	t.Parallel()
	err := failed(fakeName, nodeStage, status.Error(codes.Internal, "mkfs: no space"), nil)
	if want := "CSI driver " + fakeName + " answered NodeStageVolume with Internal: mkfs: no space"; err.Error() != want {
		t.Error(err)
	}
	if err := failed(fakeName, nodeStage, status.Error(codes.Internal, ""), nil); !strings.HasSuffix(err.Error(), "with Internal") {
		t.Error(err)
	}
	long := failed(fakeName, nodeStage, status.Error(codes.Internal, strings.Repeat("é", 100_000)), nil)
	if len(long.Error()) > maxMessage+200 || !utf8.ValidString(long.Error()) || !strings.Contains(long.Error(), "200000 bytes") {
		t.Errorf("%d bytes", len(long.Error()))
	}
}

func FuzzMessage(f *testing.F) {
	f.Add("mount failed: bad password hunter22", "hunter22")
	f.Add("a\nb\x1b[31m\xff", "secret")
	f.Add("sec\xffret "+strings.Repeat("x", 2000), "secret")
	f.Add("line one line two", "one\nline")
	f.Add("line one\nline two", "one line")
	f.Add(strings.Repeat("hunter22", 300), "hunter22")
	f.Fuzz(func(t *testing.T, message, secret string) {
		if len(secret) < minSecret { // is not looked for
			return
		}
		err := failed(fakeName, nodePublish, status.Error(codes.Internal, message), []string{secret})
		var call *CallError
		if !errors.As(err, &call) {
			t.Fatal(err)
		}
		text := call.Message
		if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) || len(text) > maxMessage+40 {
			t.Errorf("%q", text)
		}
		// What we put in ourselves may look like a secret.
		body, _, _ := strings.Cut(text, "... (")
		if utf8.ValidString(secret) && !strings.Contains(secret, "*") && strings.Contains(body, secret) {
			t.Errorf("%q holds the secret %q", body, secret)
		}
	})
}
