package journal_test

import (
	"bytes"
	"os"
	"reflect"
	"testing"

	"github.com/volumekit/volumekit/asw/journal"
)

// FuzzReplay opens a damaged journal: whatever it holds there is no panic, the
// names of every record can become folders, and the repaired file reads the
// same.
func FuzzReplay(f *testing.F) {
	dir := f.TempDir()
	j := open(f, dir, journal.Options{})
	for n := range 3 {
		must(f, j.Put(f.Context(), record(n)))
	}
	must(f, j.Delete(f.Context(), record(0).Key, false))
	must(f, j.Close())
	whole := read(f, logFile(dir))
	f.Add(whole, 0, byte(0))
	f.Add(whole, 200, byte(1))
	f.Add(whole, len(whole)-1, byte(0x80))
	f.Add(whole[:len(whole)/2], 90, byte('\n'))
	f.Add([]byte("\n\n\x00 {}\nffffffff {}\n"), 3, byte(7))
	line := `{"op":"put","id":"p/x/y","volume":{"pod":"..","plugin":"p/x","name":"../.."}}`
	f.Add([]byte(journal.Sum(line)+" "+line+"\n"), -1, byte(0))
	f.Fuzz(func(t *testing.T, text []byte, at int, flip byte) {
		if at >= 0 && at < len(text) {
			text = bytes.Clone(text)
			text[at] ^= flip
		}
		dir := t.TempDir()
		must(t, os.WriteFile(logFile(dir), text, 0o600))
		seen, err := journal.Read(dir)
		j, oerr := journal.Open(t.Context(), dir, journal.Options{Namespace: here})
		if (err == nil) != (oerr == nil) {
			t.Fatalf("Read says %v, Open says %v", err, oerr)
		}
		if err != nil {
			return
		}
		defer func() { _ = j.Close() }()
		for _, r := range seen.Records {
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
		}
		if got := j.Contents(); !reflect.DeepEqual(got.Records, seen.Records) || len(got.Damaged) != len(seen.Damaged) {
			t.Fatalf("Open: %+v\nRead: %+v", got, seen)
		}
		must(t, j.Put(t.Context(), durable(9)))
		want := j.All()
		must(t, j.Close())
		again, err := journal.Read(dir)
		must(t, err)
		if len(again.Damaged) > 0 || !reflect.DeepEqual(again.Records, want) {
			t.Fatalf("after the repair: %+v\nwant %+v", again, want)
		}
	})
}
