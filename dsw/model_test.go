package dsw

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// place is where a volume of a pod leads.
type place struct {
	id  plugins.VolumeID
	vol plugins.PodVolume
}

// modelVolume is what the model knows of a pod's volume: no index, no cache.
type modelVolume struct {
	source  string // "emptyDir", "configMap x", or "claim x"
	life    int    // which appearance of it
	applied int
	at      *place
}

// modelTask is a task that the driver holds, with what it has read.
type modelTask struct {
	task   Task
	u      Unresolved
	number int
	life   int
	at     *place
	source string
	err    error
}

// model drives a World at random and compares it with a naive copy.
type model struct {
	t      *testing.T
	rnd    *rand.Rand
	w      *World
	synced bool
	told   map[types.UID]bool // since BeginList, nil without a list
	pods   map[types.UID]map[string]*modelVolume
	objs   map[types.UID]*v1.Pod
	claims map[string]string // claim name to "pv handle"
	number int

	todo     map[Unresolved]bool
	running  []modelTask
	dropping bool // the driver forgets requests for what is running

	seen     map[place]bool // everything that ever was, as if it were there
	believed map[place]string
}

var (
	modelUIDs   = []types.UID{"u1", "u2", "u3", "u4"}
	modelNames  = []string{"a", "b", "c"}
	modelClaims = []string{"c1", "c2", "c3"}
)

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), w: New(Options{}),
		pods: map[types.UID]map[string]*modelVolume{}, objs: map[types.UID]*v1.Pod{},
		claims: map[string]string{}, todo: map[Unresolved]bool{},
		seen: map[place]bool{}, believed: map[place]string{},
	}
	m.dropping = seed%2 == 0
	for _, uid := range modelUIDs {
		m.see(place{plainID(string(uid), "found"), plainVolume(string(uid), "found")})
	}
	return m
}

func (m *model) see(p place) {
	if !m.seen[p] {
		m.seen[p] = true
		m.believed[p] = m.ask(p)
	}
}

// ask is what a planner would learn about one place.
func (m *model) ask(p place) string {
	for _, w := range m.w.Wish(p.id, []plugins.PodVolume{p.vol}).Pods {
		if w.Volume == p.vol {
			return fmt.Sprint(w.State, w.Generation, w.Names)
		}
	}
	return "missing"
}

// change does with a change what the manager does.
func (m *model) change(c Change) {
	for p := range m.seen {
		if c.All || slices.Contains(c.Volumes, p.id) || slices.Contains(c.Pods, p.vol.Pod) {
			m.believed[p] = m.ask(p)
		}
	}
	for i, id := range c.Volumes {
		if slices.Contains(c.Volumes[:i], id) {
			m.t.Errorf("%s is listed twice: %v", id, c.Volumes)
		}
	}
	for _, u := range c.Resolve {
		if m.dropping && slices.ContainsFunc(m.running, func(t modelTask) bool { return t.u == u }) {
			continue
		}
		m.todo[u] = true
	}
}

func (m *model) pick(list []string) string { return list[m.rnd.IntN(len(list))] }

func (m *model) setPod() {
	uid := modelUIDs[m.rnd.IntN(len(modelUIDs))]
	pod := podOf(string(uid))
	old, next := m.pods[uid], map[string]*modelVolume{}
	for _, name := range modelNames {
		var source string
		switch was := old[name]; {
		case m.rnd.IntN(4) == 0:
			continue
		case was != nil && m.rnd.IntN(3) > 0:
			source = was.source
		default:
			source = m.pick([]string{"emptyDir", "configMap x", "configMap y", "claim c1", "claim c2", "claim c3"})
		}
		var vol v1.Volume
		switch source {
		case "emptyDir":
			vol = emptyDir(name)
		case "configMap x", "configMap y":
			vol = configMap(name, source[len("configMap "):])
		default:
			vol = claim(name, source[len("claim "):])
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, vol)
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: name})
		if was := old[name]; was != nil && was.source == source {
			next[name] = was
			continue
		}
		m.number++
		next[name] = &modelVolume{source: source, life: m.number}
	}
	m.pods[uid], m.objs[uid] = next, pod
	if m.told != nil {
		m.told[uid] = true
	}
	m.change(m.w.SetPod(pod))
}

func (m *model) removePod() {
	uid := modelUIDs[m.rnd.IntN(len(modelUIDs))]
	delete(m.pods, uid)
	m.change(m.w.RemovePod(uid))
}

func (m *model) list() {
	if m.told == nil || m.rnd.IntN(4) == 0 {
		m.told = map[types.UID]bool{}
		m.w.BeginList()
		return
	}
	for uid := range m.pods {
		if !m.told[uid] {
			delete(m.pods, uid)
		}
	}
	m.told, m.synced = nil, true
	m.change(m.w.EndList())
}

// rebind changes what the API says and sends the notice, perhaps a coarse one.
func (m *model) rebind() {
	name := m.pick(modelClaims)
	if m.rnd.IntN(3) == 0 {
		delete(m.claims, name)
	} else {
		m.claims[name] = m.pick([]string{"pv1 h1", "pv2 h2", "pv1 h2"})
	}
	ref := claimRef(name)
	if m.rnd.IntN(5) == 0 {
		ref.Name = ""
	}
	m.change(m.w.Touch(ref))
}

func (m *model) touchContent() {
	m.change(m.w.Touch(configMapRef("ns", m.pick([]string{"x", "y", "z", ""}))))
}

func (m *model) begin() {
	for u := range m.todo {
		delete(m.todo, u)
		task, ok := m.w.Begin(u)
		v := m.pods[u.Pod][u.Name]
		if ok != (v != nil) {
			m.t.Fatalf("%v can be begun: %v, the model has %v", u, ok, v)
		}
		if !ok {
			continue
		}
		m.number++
		t := modelTask{task: task, u: u, number: m.number, life: v.life, source: v.source}
		t.at, t.err = m.read(u, v.source)
		m.running = append(m.running, t)
		return
	}
}

// read is the model's resolver.
func (m *model) read(u Unresolved, source string) (*place, error) {
	if source == "emptyDir" || source == "configMap x" || source == "configMap y" {
		return &place{plainID(string(u.Pod), u.Name), plainVolume(string(u.Pod), u.Name)}, nil
	}
	bound := m.claims[source[len("claim "):]]
	if bound == "" {
		return nil, errors.New("not bound")
	}
	var pv, handle string
	_, _ = fmt.Sscan(bound, &pv, &handle)
	return &place{stagedID(handle), stagedVolume(string(u.Pod), pv)}, nil
}

func (m *model) report() {
	if len(m.running) == 0 {
		return
	}
	i := m.rnd.IntN(len(m.running))
	t := m.running[i]
	m.running = slices.Delete(m.running, i, i+1)
	if v := m.pods[t.u.Pod][t.u.Name]; v != nil && v.life == t.life && t.number > v.applied {
		v.applied = t.number
		if t.at != nil {
			v.at = t.at
		}
	}
	if t.err != nil {
		m.change(m.w.SetFailed(t.task, t.err, refsOf(t.source)))
		return
	}
	m.see(*t.at)
	r := Resolution{ID: t.at.id, Volume: t.at.vol, Spec: &plugins.Spec{Volume: &v1.Volume{Name: t.u.Name}}}
	if t.source[:2] == "cl" {
		r.Spec = &plugins.Spec{PV: &v1.PersistentVolume{}}
		r.SpecRefs = refsOf(t.source)
	} else if t.source != "emptyDir" {
		r.ContentRefs = []plugins.Ref{configMapRef("ns", t.source[len("configMap "):])}
	}
	m.change(m.w.SetResolved(t.task, r))
}

func refsOf(source string) []plugins.Ref { return []plugins.Ref{claimRef(source[len("claim "):])} }

// expect is the rule book, read literally.
func (m *model) expect(p place) State {
	for _, v := range m.pods[p.vol.Pod] {
		if v.at != nil && *v.at == p {
			return Wanted
		}
	}
	if !m.synced {
		return Unknown
	}
	for _, v := range m.pods[p.vol.Pod] {
		if v.at == nil {
			return Unknown
		}
	}
	return Unwanted
}

func (m *model) check() {
	m.t.Helper()
	wanted := map[plugins.VolumeID]bool{}
	for p := range m.seen {
		got, want := "missing", m.expect(p)
		for _, w := range m.w.Wish(p.id, []plugins.PodVolume{p.vol}).Pods {
			if w.Volume == p.vol {
				got = w.State.String()
				if w.State == Wanted && w.Pod != m.objs[p.vol.Pod] {
					m.t.Errorf("%v: the pod is an old one", p)
				}
			}
		}
		if want == Wanted {
			wanted[p.id] = true
		}
		if got != want.String() {
			m.t.Fatalf("%v is %s, want %s", p, got, want)
		}
		if now := m.ask(p); now != m.believed[p] {
			m.t.Fatalf("%v is %s, and nobody was told since it was %s", p, now, m.believed[p])
		}
	}
	if m.w.Len() != len(wanted) {
		m.t.Fatalf("%d volumes, want %d", m.w.Len(), len(wanted))
	}
	m.w.consistent(m.t)
}

// settled lets everything end: then every volume must be what the API says.
func (m *model) settled() {
	for len(m.todo)+len(m.running) > 0 {
		m.begin()
		m.report()
		m.check()
	}
	for uid, volumes := range m.pods {
		for name, v := range volumes {
			at, _ := m.read(Unresolved{uid, name}, v.source)
			s, _ := m.w.Pod(uid)
			i := slices.IndexFunc(s.Volumes, func(v VolumeState) bool { return v.Name == name })
			if state := s.Volumes[i]; (state.Err == nil) != (at != nil) || at != nil && (state.ID != at.id || state.Volume != at.vol) {
				m.t.Fatalf("%s/%s (%s) is %+v in the end, and the API says %v", uid, name, v.source, state, at)
			}
		}
	}
}

func runModel(t *testing.T, seed uint64) {
	m := newModel(t, seed)
	for range 150 {
		switch m.rnd.IntN(12) {
		case 0, 1:
			m.setPod()
		case 2:
			m.removePod()
		case 3:
			m.list()
		case 4, 5:
			m.rebind()
		case 6:
			m.touchContent()
		case 7, 8, 9:
			m.begin()
		default:
			m.report()
		}
		m.check()
		if t.Failed() {
			return
		}
	}
	m.settled()
}

func TestModel(t *testing.T) {
	for seed := range uint64(150) {
		if runModel(t, seed); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzModel(f *testing.F) {
	f.Add(uint64(1 << 40))
	f.Fuzz(runModel)
}

// consistent checks the indexes of a world against each other.
func (w *World) consistent(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	links, running, targets := 0, 0, map[*target]int{}
	for uid, p := range w.pods {
		open := 0
		for _, v := range p.volumes {
			links += len(v.links)
			if v.inFlight {
				running++
			}
			if (v.res == nil) != (v.target == nil) {
				t.Fatalf("%s/%s: resolved and target disagree", uid, v.use.Name)
			}
			if v.res == nil {
				open++
				continue
			}
			targets[v.target]++
			if e := w.volumes[v.res.ID]; e == nil || e != v.target.entry || v.target.wish.Volume != v.res.Volume {
				t.Fatalf("%s/%s: target is elsewhere", uid, v.use.Name)
			}
		}
		if open != p.open {
			t.Fatalf("%s: %d open, counted %d", uid, open, p.open)
		}
	}
	for _, kind := range w.refs {
		for ref, list := range kind {
			if list.head == nil || list.ref != ref || list.head.prev != nil {
				t.Fatalf("list of %s is broken", ref)
			}
			for l := list.head; l != nil; l = l.next {
				if links--; l.next != nil && l.next.prev != l {
					t.Fatalf("list of %s is broken", ref)
				}
			}
		}
	}
	if links != 0 || running != w.notices.users || len(w.order) != len(w.volumes) {
		t.Fatalf("links %+d; running %d, counted %d; order %d, volumes %d", links, running, w.notices.users, len(w.order), len(w.volumes))
	}
	for i, e := range w.order {
		if e.pos != i || w.volumes[e.id] != e || len(e.targets) == 0 {
			t.Fatalf("%s is not in order", e.id)
		}
		for _, target := range e.targets {
			if targets[target] != len(target.members) || len(target.members) != len(target.wish.Names) {
				t.Fatalf("%s: members %d, want %d", target.wish.Volume, len(target.members), targets[target])
			}
		}
	}
}
