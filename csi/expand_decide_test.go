package csi

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/plugins"
)

// growthFacts is a claim in a state, for the table below.
func growthFacts(change ...func(*expansionFacts)) expansionFacts {
	f := expansionFacts{
		claim: &v1.PersistentVolumeClaim{}, modes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		wished: 20, pv: 20, can: true,
	}
	f.claim.Spec.Resources.Requests = storageList(20)
	for _, c := range change {
		c(&f)
	}
	return f
}

func TestDecideExpansion(t *testing.T) {
	t.Parallel()
	type change = func(*expansionFacts)
	capacity := func(n int64) change {
		return func(f *expansionFacts) { f.claim.Status.Capacity = storageList(n) }
	}
	allocated := func(n int64) change {
		return func(f *expansionFacts) { f.claim.Status.AllocatedResources = storageList(n) }
	}
	status := func(s v1.ClaimResourceStatus) change {
		return func(f *expansionFacts) { setResizeStatus(f.claim, s) }
	}
	request := func(n int64) change {
		return func(f *expansionFacts) { f.claim.Spec.Resources.Requests = storageList(n) }
	}
	mode := func(list ...v1.PersistentVolumeAccessMode) change {
		return func(f *expansionFacts) { f.modes = list }
	}
	failed := func(n int64) change { return func(f *expansionFacts) { f.failed = n } }
	here := func(n int64) change { return func(f *expansionFacts) { f.here = n } }
	cannot := func(f *expansionFacts) { f.can = false }
	unneeded := func(f *expansionFacts) {
		f.claim.Annotations = map[string]string{NodeExpansionNotRequired: "false"}
	}
	many := mode(v1.ReadOnlyMany, v1.ReadWriteMany)
	alone := func(f *expansionFacts) { f.alone, f.pv = true, 10 }
	const (
		pending    = v1.PersistentVolumeClaimNodeResizePending
		inProgress = v1.PersistentVolumeClaimNodeResizeInProgress
		infeasible = v1.PersistentVolumeClaimNodeResizeInfeasible
		controller = v1.PersistentVolumeClaimControllerResizeInProgress
		impossible = v1.PersistentVolumeClaimControllerResizeInfeasible
	)
	now := func(to int64, record expansionRecord) expansionPlan {
		return expansionPlan{do: expandNow, to: to, record: record}
	}
	nothing, later, never := expansionPlan{}, expansionPlan{do: expandLater}, expansionPlan{do: expandNever}
	byController := expansionPlan{do: expandNow, to: 20, record: recordAll, controller: true}
	lastTry := expansionPlan{do: expandNow, to: 20, record: recordAll, giveUp: true}
	for name, c := range map[string]struct {
		facts expansionFacts
		want  expansionPlan
	}{
		"pending":                          {growthFacts(status(pending), allocated(20), capacity(10)), now(20, recordAll)},
		"pending, nothing allocated":       {growthFacts(status(pending)), now(20, recordAll)},
		"pending, less allocated":          {growthFacts(status(pending), allocated(15), capacity(10)), now(15, recordAll)},
		"in progress":                      {growthFacts(status(inProgress), allocated(20), capacity(10)), now(20, recordAll)},
		"in progress after a failure":      {growthFacts(status(inProgress), allocated(20), failed(20)), now(20, recordAll)},
		"in progress, other request":       {growthFacts(status(inProgress), allocated(20), request(15)), now(20, recordAll)},
		"in progress, failed, request":     {growthFacts(status(inProgress), allocated(20), request(15), failed(20)), lastTry},
		"pending, failed, other request":   {growthFacts(status(pending), allocated(20), request(15), failed(20)), now(20, recordAll)},
		"failed for another size":          {growthFacts(status(inProgress), allocated(20), request(15), failed(18)), now(20, recordAll)},
		"pending, RWX":                     {growthFacts(status(pending), allocated(20), many), now(20, recordAll)},
		"pending, but read-only":           {growthFacts(status(pending), func(f *expansionFacts) { f.readOnly = true }), expansionPlan{do: expandReadOnly}},
		"pending, but no capability":       {growthFacts(status(pending), allocated(20), cannot), nothing},
		"infeasible":                       {growthFacts(status(infeasible), allocated(20)), never},
		"infeasible, larger wish":          {growthFacts(status(infeasible), allocated(15), request(30)), never},
		"controller":                       {growthFacts(status(controller), allocated(20)), later},
		"controller infeasible":            {growthFacts(status(impossible), allocated(20)), later},
		"a status of the future":           {growthFacts(status("Dancing"), allocated(20)), later},
		"no status, small":                 {growthFacts(allocated(20), capacity(10)), later},
		"no status, done":                  {growthFacts(allocated(20), capacity(20)), nothing},
		"no status, larger":                {growthFacts(allocated(30), capacity(30)), nothing},
		"done, RWX":                        {growthFacts(allocated(20), capacity(20), many), now(20, recordNothing)},
		"done, RWX, here already":          {growthFacts(allocated(20), capacity(20), many, here(20)), nothing},
		"done, RWX, here less":             {growthFacts(allocated(20), capacity(20), many, here(15)), now(20, recordNothing)},
		"done, RWX, not supported":         {growthFacts(allocated(20), capacity(20), many, cannot), nothing},
		"done, RWX, not required":          {growthFacts(allocated(20), capacity(20), many, unneeded), nothing},
		"pending, RWX, not required":       {growthFacts(status(pending), allocated(20), many, unneeded), now(20, recordAll)},
		"of old":                           {growthFacts(capacity(10)), now(20, recordEnd)},
		"of old, nothing told":             {growthFacts(), now(20, recordEnd)},
		"of old, not supported":            {growthFacts(capacity(10), cannot), nothing},
		"of old, equal":                    {growthFacts(capacity(20)), nothing},
		"of old, equal, RWX":               {growthFacts(capacity(20), many), now(20, recordNothing)},
		"no claim":                         {growthFacts(func(f *expansionFacts) { f.claim = nil }), now(20, recordNothing)},
		"no claim, here already":           {growthFacts(func(f *expansionFacts) { f.claim, f.here = nil, 20 }), nothing},
		"no claim, not supported":          {growthFacts(func(f *expansionFacts) { f.claim, f.can = nil, false }), nothing},
		"alone":                            {growthFacts(alone), byController},
		"alone, no node capability":        {growthFacts(alone, cannot), byController},
		"alone, begun":                     {growthFacts(alone, status(controller), allocated(20)), byController},
		"alone, begun with another size":   {growthFacts(alone, status(inProgress), allocated(15)), byController},
		"alone, node's turn":               {growthFacts(alone, status(inProgress), allocated(20)), now(20, recordAll)},
		"alone, node's turn, cannot":       {growthFacts(alone, status(pending), allocated(20), cannot), byController},
		"alone, infeasible":                {growthFacts(alone, status(impossible), allocated(20)), never},
		"alone, node infeasible":           {growthFacts(alone, status(infeasible), allocated(20)), never},
		"alone, infeasible, other request": {growthFacts(alone, status(impossible), allocated(15)), byController},
		"alone, done":                      {growthFacts(alone, capacity(20), allocated(20)), nothing},
		"alone, storage is large enough":   {growthFacts(alone, func(f *expansionFacts) { f.pv = 20 }, capacity(10)), now(20, recordEnd)},
		"alone, no claim":                  {growthFacts(alone, func(f *expansionFacts) { f.claim = nil }), now(20, recordNothing)},
	} {
		got := decide(c.facts)
		why := got.why
		if got.why = ""; got != c.want {
			t.Errorf("%s: %+v (%s), want %+v", name, got, why, c.want)
		}
		if why == "" && (got.do == expandLater || got.do == expandNever) {
			t.Errorf("%s: nobody says why", name)
		}
	}
}

func TestSizeNow(t *testing.T) {
	t.Parallel()
	request := func(wished, pv, told int64) plugins.SetUpRequest {
		req := plugins.SetUpRequest{Spec: &plugins.Spec{
			PV: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{Capacity: storageList(pv)}}, Claim: &v1.PersistentVolumeClaim{},
		}}
		if wished > 0 {
			req.Params.Size = size(wished)
		}
		if told > 0 {
			req.Spec.Claim.Status.Capacity = storageList(told)
		}
		return req
	}
	for _, c := range []struct{ wished, pv, told, want int64 }{
		{20, 20, 20, 0}, {20, 20, 10, 10}, {20, 20, 30, 0}, {20, 20, 0, 0}, {20, 10, 0, 10}, {20, 10, 20, 0}, {0, 20, 10, 0},
	} {
		got := sizeNow(request(c.wished, c.pv, c.told))
		if got == nil && c.want != 0 || got != nil && got.Value() != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	for _, req := range []plugins.SetUpRequest{
		{}, {Params: plugins.Params{Size: size(1)}}, {Params: plugins.Params{Size: size(1)}, Spec: &plugins.Spec{PV: &v1.PersistentVolume{}}},
	} {
		if got := sizeNow(req); got != nil {
			t.Errorf("without a claim: %v", got)
		}
	}
}

func TestWishedSize(t *testing.T) {
	t.Parallel()
	spec := func(pv, request int64) *plugins.Spec {
		return &plugins.Spec{
			PV:    &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{Capacity: storageList(pv)}},
			Claim: &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{Requests: storageList(request)}}},
		}
	}
	alone := Expansion{Controller: true}
	if got := alone.wished(spec(10, 20)); got == nil || got.Value() != 20 {
		t.Errorf("larger: %v", got)
	}
	for name, got := range map[string]*resource.Quantity{
		"equal": alone.wished(spec(10, 10)), "smaller": alone.wished(spec(10, 5)), "control plane": Expansion{}.wished(spec(10, 20)),
		"no claim": alone.wished(&plugins.Spec{PV: &v1.PersistentVolume{}}), "inline": alone.wished(&plugins.Spec{Volume: &v1.Volume{}}),
		"nothing": alone.wished(nil), "no request": alone.wished(&plugins.Spec{PV: &v1.PersistentVolume{}, Claim: &v1.PersistentVolumeClaim{}}),
	} {
		if got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
