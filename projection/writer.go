package projection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/plugins"
)

// Names that the writer keeps at the top of a folder.
const (
	dataLink = "..data"
	tempLink = "..data_tmp"
	dirMode  = 0o755
)

// The points at which a [Writer] calls its fault hook, in order. Before
// FaultSwitched an error leaves the old content live and nothing behind; from
// there on the new content is live.
const (
	FaultVersionMade  = "writer.version-made"
	FaultDataWritten  = "writer.data-written"
	FaultLinkMade     = "writer.link-made"
	FaultSwitched     = "writer.switched"
	FaultLinksMade    = "writer.links-made"
	FaultLinksRemoved = "writer.links-removed"
	FaultOldRemoved   = "writer.old-removed"
)

// Writer brings a folder to the content of a [Tree]. Its fields are set before
// first use. Calls for one folder must not overlap.
type Writer struct {
	// Root is the folder. The caller opens and closes it.
	Root *os.Root
	// at is the folder in place of Root, for those in this package that have
	// it open.
	at *folder
	// Clock names version folders by time; nil means the real one.
	Clock clock.PassiveClock
	// Faults is a hook for tests.
	Faults plugins.FaultFunc
	// Sync flushes the files to the disk before the switch, and the switch
	// itself. Content is rendered anew after a power cut, so volumes need it
	// only where nobody would do that.
	Sync bool
	// Empty promises that the folder is new and empty, which spares looking.
	Empty bool
	// Linger is how long the files of the old version stay after the switch,
	// for readers that have "..data" open. Write returns after that.
	Linger time.Duration
}

// WriteResult says what Write did.
type WriteResult struct {
	// Version names the content that is live now. It is the name of the
	// version folder: it changes whenever a file, mode or owner does, stays
	// across processes, and tells nothing of the content.
	Version string
	// Changed lists the files that were added, changed or removed, sorted.
	Changed []string
	// Wrote is true if a new version was published.
	Wrote bool
}

// Write makes the folder show tree, and nothing else. Unchanged content (data,
// modes and owners) is not written again, but links that a crash left missing
// or stale are repaired, and so is whatever a killed writer left behind.
//
// An error before the switch leaves the live content as it was and removes
// what was built; its class is transient, or unsupported where an owner cannot
// be set here. An error after it is of class uncertain: the new content is
// whole and live, something around it is not tidy; the next Write tidies up.
func (w *Writer) Write(ctx context.Context, tree *Tree) (WriteResult, error) {
	if w.at != nil {
		return w.write(ctx, *w.at, tree)
	}
	top, err := folderOf(w.Root)
	if err != nil {
		return WriteResult{}, plugins.Transient(err)
	}
	defer func() { _ = top.close() }()
	return w.write(ctx, top, tree)
}

func (w *Writer) write(ctx context.Context, top folder, tree *Tree) (WriteResult, error) {
	found, err := w.look(top)
	if err != nil {
		return WriteResult{}, plugins.Transient(err)
	}
	untidy := sweep(top, found)
	changed, err := compare(ctx, top, found.live, tree)
	if err != nil {
		return WriteResult{}, plugins.Transient(err)
	}
	res := WriteResult{Version: found.live, Changed: changed}
	if found.live == "" || len(changed) > 0 {
		version, err := w.replace(ctx, top, tree)
		if err != nil {
			if plugins.ClassOf(err) == plugins.ClassUncertain {
				err = plugins.Transient(err)
			}
			return WriteResult{Version: found.live}, err
		}
		res.Wrote, res.Version, found.replaced = true, version, true
	}
	if err := errors.Join(untidy, w.finish(ctx, top, tree, found)); err != nil {
		return res, plugins.Uncertain(err)
	}
	return res, nil
}

// found is what was in the folder before this call.
type found struct {
	have     names
	live     string // the live version, "" if there was none
	replaced bool   // true once this call has published another
}

// look finds what is in the folder and which version is live. A "..data" that
// leads anywhere but to a version folder counts as none and gets replaced.
func (w *Writer) look(top folder) (found, error) {
	if w.Empty {
		return found{}, nil
	}
	have, err := top.names()
	if err != nil {
		return found{}, err
	}
	f := found{have: have}
	if have[dataLink] {
		live, err := top.readlink(dataLink)
		if err != nil {
			return f, err
		}
		if isVersion(live) && have[live] {
			f.live = live
		}
	}
	return f, nil
}

// isVersion recognises the names of version folders, ours and the kubelet's.
func isVersion(name string) bool {
	return strings.HasPrefix(name, "..20") && !strings.ContainsAny(name, "/\\")
}

// sweep removes what a killed writer left, before anything is built: its
// leftovers must not use up the space that the new version needs. What cannot
// be removed does not stand in the way of the content.
func sweep(top folder, f found) error {
	var errs []error
	for name := range f.have {
		if name == tempLink || isVersion(name) && name != f.live {
			if err := removeTree(top, name); err != nil {
				errs = append(errs, fmt.Errorf("remove leftover: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// replace builds a version aside and publishes it.
func (w *Writer) replace(ctx context.Context, top folder, tree *Tree) (string, error) {
	version, err := w.makeVersion(top)
	if err != nil {
		return "", err
	}
	err = w.build(ctx, top, version, tree)
	if err == nil {
		err = w.publish(top, version)
	}
	if err != nil {
		return "", errors.Join(err, removeTree(top, version))
	}
	return version, nil
}

// makeVersion creates an empty version folder.
func (w *Writer) makeVersion(top folder) (string, error) {
	var c clock.PassiveClock = clock.RealClock{}
	if w.Clock != nil {
		c = w.Clock
	}
	stamp := c.Now().UTC().Format("..2006_01_02_15_04_05.")
	for range 100 {
		name := stamp + strconv.FormatUint(1e9+uint64(rand.Uint32()), 10) //nolint:gosec // unique, not secret
		err := top.mkdir(name, dirMode)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return name, err
		}
	}
	return "", errors.New("no unused name for a version folder")
}

// build fills a version folder.
func (w *Writer) build(ctx context.Context, top folder, version string, tree *Tree) error {
	dir, err := top.open(version)
	if err != nil {
		return err
	}
	b := builder{root: dir, dir: dir, sync: w.Sync}
	err = b.prepare()
	if err == nil {
		err = w.Faults.At(FaultVersionMade)
	}
	for i := range tree.files {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = b.write(tree.files[i].name, tree.files[i].File)
		}
	}
	if err == nil {
		err = b.flush()
	}
	if err = errors.Join(err, b.close()); err != nil {
		return err
	}
	return w.Faults.At(FaultDataWritten)
}

// publish is the switch. If it fails, the temporary link is gone again.
func (w *Writer) publish(top folder, version string) error {
	if w.Empty { // nothing to replace, and a link is whole from its first moment
		if err := w.Faults.At(FaultLinkMade); err != nil {
			return err
		}
		return top.symlink(version, dataLink)
	}
	err := top.symlink(version, tempLink)
	if err == nil {
		if err = w.Faults.At(FaultLinkMade); err == nil {
			err = top.rename(tempLink, dataLink)
		}
		if err != nil {
			err = errors.Join(err, removeIfThere(top, tempLink))
		}
	}
	return err
}

// finish does what follows the switch: flush it, show new names, hide gone
// ones, and last remove the old version. It goes on after an error: the new
// content is live, so the sooner all of it can be seen the better.
func (w *Writer) finish(ctx context.Context, top folder, tree *Tree, f found) error {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	if f.replaced {
		if w.Sync {
			note(top.sync())
		}
		note(w.Faults.At(FaultSwitched))
	}
	places := tree.places()
	note(eachPlace(top, places, f.have, makeVisible))
	note(w.Faults.At(FaultLinksMade))
	if !w.Empty {
		note(eachPlace(top, places, f.have, hideGone))
	}
	note(w.Faults.At(FaultLinksRemoved))
	if f.replaced && f.live != "" {
		w.linger(ctx)
		note(removeTree(top, f.live))
	}
	note(w.Faults.At(FaultOldRemoved))
	return errors.Join(errs...)
}

// eachPlace runs do for each place. What is at the top is known already.
func eachPlace(top folder, places []*place, have names, do func(*place, folder, names) error) error {
	errs := []error{do(places[0], top, have)}
	for _, p := range places[1:] {
		at, err := descend(top, p.dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		there, err := at.names()
		if err == nil {
			err = do(p, at, there)
		}
		errs = append(errs, err, at.close())
	}
	return errors.Join(errs...)
}

// descend opens a folder by its path below another one.
func descend(top folder, path string) (folder, error) {
	first, rest, deeper := strings.Cut(path, "/")
	at, err := top.open(first)
	for err == nil && deeper {
		first, rest, deeper = strings.Cut(rest, "/")
		var next folder
		next, err = at.open(first)
		err = errors.Join(err, at.close())
		at = next
	}
	return at, err
}

// linger waits in real time, whatever clock names the versions: it waits for
// readers, not for an hour of the day.
func (w *Writer) linger(ctx context.Context) {
	if w.Linger <= 0 {
		return
	}
	timer := clock.RealClock{}.NewTimer(w.Linger)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// builder writes files below one folder that nobody else sees yet.
type builder struct {
	root folder // the version folder
	dir  folder // the folder written to last
	name string // its path, "" for root
	sync bool
	// lost are the permission bits that a new file may lack because of the
	// umask, and owner is what new files get.
	lost  fs.FileMode
	owner owner
}

// prepare learns from the new folder what the umask takes and who owns what is
// created in it, instead of asking for every file.
func (b *builder) prepare() error {
	info, err := b.root.stat()
	if err != nil {
		return err
	}
	b.owner = info.owner
	taken := dirMode &^ info.perm
	b.lost = taken | 0o022 // 0755 says nothing about these two
	if taken != 0 {
		return b.root.chmod(info.withMode(dirMode))
	}
	return nil
}

func (b *builder) write(name string, f File) error {
	if err := b.enter(path.Dir(name)); err != nil {
		return err
	}
	mode := fs.FileMode(f.Mode)
	file, err := b.dir.create(path.Base(name), mode)
	if err != nil {
		return err
	}
	err = file.write(f.Data)
	if want := b.owner.with(f); err == nil && want != b.owner {
		err = chown(file, want, f.Source)
	}
	if err == nil && mode&b.lost != 0 {
		err = file.chmod(mode)
	}
	if err == nil && b.sync {
		err = file.sync()
	}
	return errors.Join(err, file.close())
}

// enter changes to a folder, given by its path in the version folder. Files
// come sorted, so that this is rare.
func (b *builder) enter(name string) error {
	if name == "." {
		name = ""
	}
	if name == b.name {
		return nil
	}
	if err := b.leave(); err != nil || name == "" {
		return err
	}
	at, way := b.root, ""
	for element := range strings.SplitSeq(name, "/") {
		next, err := b.step(at, element)
		if way != "" {
			err = errors.Join(err, at.close())
		}
		if err != nil {
			return err
		}
		at, way = next, path.Join(way, element)
	}
	b.dir, b.name = at, name
	return nil
}

// step makes a folder in another one if it is missing, and opens it.
func (b *builder) step(at folder, name string) (folder, error) {
	made := at.mkdir(name, dirMode)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return folder{}, made
	}
	next, err := at.open(name)
	if err != nil || made != nil || b.lost&dirMode&^0o022 == 0 {
		return next, err
	}
	if err = next.chmod(dirMode); err != nil {
		err = errors.Join(err, next.close())
	}
	return next, err
}

// leave goes back to the version folder.
func (b *builder) leave() error {
	if b.name == "" {
		return nil
	}
	var err error
	if b.sync {
		err = b.dir.sync()
	}
	err = errors.Join(err, b.dir.close())
	b.dir, b.name = b.root, ""
	return err
}

// flush makes the names durable as the files are.
func (b *builder) flush() error {
	if err := b.leave(); err != nil || !b.sync {
		return err
	}
	return b.root.sync()
}

func (b *builder) close() error { return errors.Join(b.leave(), b.root.close()) }
