package checker

// Rule is the stable id of one rule.
type Rule string

// The rules. [Rules] says what each means and where it comes from.
const (
	OneCallPerVolume     Rule = "one-call-per-volume"
	CapabilitiesUnknown  Rule = "capabilities-unknown"
	CapabilityRPC        Rule = "capability-rpc"
	CapabilityField      Rule = "capability-field"
	CapabilityReadonly   Rule = "capability-readonly"
	CapabilityMountGroup Rule = "capability-mount-group"
	CapabilityAccessMode Rule = "capability-access-mode"
	SingleNodeWriter     Rule = "single-node-writer"
	NodeID               Rule = "node-id"
	AttachBeforeUse      Rule = "attach-before-use"
	AttachSingleNode     Rule = "attach-single-node"
	DetachInUse          Rule = "detach-in-use"
	StageBeforePublish   Rule = "stage-before-publish"
	StagingPathMissing   Rule = "staging-path-missing"
	StagingPathExtra     Rule = "staging-path-unexpected"
	StagingPathDiffers   Rule = "staging-path-differs"
	TwoStagingPaths      Rule = "two-staging-paths"
	UnstageInUse         Rule = "unstage-in-use"
	UndoUncertain        Rule = "undo-uncertain"
	UnpublishPath        Rule = "unpublish-path"
	PathShared           Rule = "path-shared"
	PublishSingleWriter  Rule = "publish-single-writer"
	PublishSingleNode    Rule = "publish-single-node"
	PublishCapability    Rule = "publish-capability"
	ArgumentsChanged     Rule = "arguments-changed"
	PublishContext       Rule = "publish-context"
	VolumeContext        Rule = "volume-context"
	AccessTypeChanged    Rule = "access-type-changed"
	AccessModeChanged    Rule = "access-mode-changed"
	ExpandTooEarly       Rule = "expand-too-early"
	ExpandOffline        Rule = "expand-offline"
	ExpandOrder          Rule = "expand-order"
	VolumePath           Rule = "volume-path"
	DeleteInUse          Rule = "delete-in-use"
	RetryForbidden       Rule = "retry-forbidden"
	RequiredField        Rule = "required-field"
	InvalidField         Rule = "invalid-field"
	SizeLimit            Rule = "size-limit"
	SecretKey            Rule = "secret-key"
	SecretLeak           Rule = "secret-leak"
	ParentMissing        Rule = "parent-missing"
	TargetExists         Rule = "target-exists"
	StagingMissing       Rule = "staging-missing"
	ProbeFirst           Rule = "probe-first"
	PluginInfoFirst      Rule = "plugin-info-first"
	CapabilitiesOnce     Rule = "capabilities-once"
	LeftBehind           Rule = "left-behind"
	LeftUncertain        Rule = "left-uncertain"
	LeftInFlight         Rule = "left-in-flight"
)

// When says under which condition a rule is checked.
type When string

// The conditions.
const (
	// Always: unless [Options.Disable] names the rule.
	Always When = "always"
	// OnRequest: only when [Options.Enable] names the rule.
	OnRequest When = "on request"
	// WithFilesystem: when [Options.Filesystem] is set.
	WithFilesystem When = "with Filesystem"
	// AtEnd: by [Checker.Leftovers] and [Checker.VerifyClean].
	AtEnd When = "at the end"
)

// RuleInfo describes a rule.
type RuleInfo struct {
	// Rule is its id.
	Rule Rule
	// Section is the section of the CSI specification, or "custom" where the
	// rule is good practice that the specification does not demand.
	Section string
	// When says when it is checked.
	When When
	// Text says what the orchestrator has to do.
	Text string
}

// Rules returns all rules.
func Rules() []RuleInfo {
	var all []RuleInfo
	all = append(all, capabilityRules()...)
	all = append(all, orderRules()...)
	all = append(all, argumentRules()...)
	all = append(all, fieldRules()...)
	return append(all, lifeRules()...)
}

func capabilityRules() []RuleInfo {
	return []RuleInfo{
		{OneCallPerVolume, "Concurrency", Always, "at most one call in flight per volume (or snapshot, or name of one to be created)"},
		{CapabilitiesUnknown, "NodeGetCapabilities", Always, "the capabilities are asked before the first call that depends on them"},
		{CapabilityRPC, "NodeGetCapabilities", Always, "an RPC is called only when the driver reported its capability"},
		{CapabilityField, "CreateVolume", Always, "a field that depends on a capability is set only when the driver reported it"},
		{CapabilityReadonly, "ControllerPublishVolume", Always, "ControllerPublishVolume with readonly needs PUBLISH_READONLY"},
		{CapabilityMountGroup, "NodeGetCapabilities", Always, "volume_mount_group needs VOLUME_MOUNT_GROUP"},
		{CapabilityAccessMode, "NodePublishVolume", Always, "SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER need SINGLE_NODE_MULTI_WRITER"},
		{SingleNodeWriter, "NodePublishVolume", Always, "SINGLE_NODE_WRITER is replaced by the two precise modes where the driver has SINGLE_NODE_MULTI_WRITER"},
	}
}

func orderRules() []RuleInfo {
	return []RuleInfo{
		{NodeID, "ControllerPublishVolume", Always, "node_id of ControllerPublishVolume is one that NodeGetInfo returned before"},
		{AttachBeforeUse, "NodeStageVolume", Always, "ControllerPublishVolume succeeded before NodeStageVolume and NodePublishVolume"},
		{AttachSingleNode, "ControllerPublishVolume", Always, "a volume is attached to several nodes only with a MULTI_NODE access mode"},
		{DetachInUse, "ControllerUnpublishVolume", Always, "all NodeUnpublishVolume and NodeUnstageVolume succeeded before ControllerUnpublishVolume"},
		{StageBeforePublish, "RPC Interactions and Reference Counting", Always, "NodeStageVolume succeeded before NodePublishVolume"},
		{StagingPathMissing, "NodePublishVolume", Always, "staging_target_path is set in publish, expand, stats and health of a staged volume"},
		{StagingPathExtra, "NodeExpandVolume", Always, "staging_target_path is empty without STAGE_UNSTAGE_VOLUME and for a volume that is not staged"},
		{StagingPathDiffers, "NodePublishVolume", Always, "staging_target_path is the path at which the volume was staged"},
		{TwoStagingPaths, "NodeStageVolume", Always, "one staging path per volume on a node"},
		{UnstageInUse, "RPC Interactions and Reference Counting", Always, "all NodeUnpublishVolume succeeded before NodeUnstageVolume"},
		{UndoUncertain, "RPC Interactions and Reference Counting", Always, "what has an unknown result is undone before the step below it is undone"},
		{UnpublishPath, "NodeUnpublishVolume", Always, "NodeUnpublishVolume names a target path at which the volume was published"},
		{PathShared, "NodePublishVolume", Always, "a target or staging path belongs to one volume and one purpose"},
		{PublishSingleWriter, "NodePublishVolume", Always, "a SINGLE_NODE_SINGLE_WRITER volume has one target path"},
		{PublishSingleNode, "NodePublishVolume", OnRequest, "SINGLE_NODE_WRITER and SINGLE_NODE_READER_ONLY volumes have one target path (common orchestrators publish them for several pods)"},
		{PublishCapability, "NodePublishVolume", OnRequest, "all targets of a volume are published with the same volume_capability (differing mount groups of pods break this)"},
		{DeleteInUse, "DeleteVolume", Always, "a volume is deleted only when it is neither attached, staged nor published"},
	}
}

func argumentRules() []RuleInfo {
	return []RuleInfo{
		{ArgumentsChanged, "NodePublishVolume", Always, "a repeated attach, stage or publish has the arguments of the first (secrets and service account tokens excepted)"},
		{PublishContext, "NodeStageVolume", Always, "publish_context is what ControllerPublishVolume returned, and empty without PUBLISH_UNPUBLISH_VOLUME"},
		{VolumeContext, "ControllerPublishVolume", Always, "volume_context is the one of the volume in each call"},
		{AccessTypeChanged, "NodePublishVolume", Always, "block or mount is the same in all calls of a volume"},
		{AccessModeChanged, "NodePublishVolume", Always, "the access mode is the same in all calls of a volume"},
		{ExpandTooEarly, "NodeExpandVolume", Always, "NodeExpandVolume follows a successful NodeStageVolume, without that capability a successful NodePublishVolume"},
		{ExpandOffline, "ControllerExpandVolume", Always, "a driver with OFFLINE expansion only expands no volume that is in use"},
		{ExpandOrder, "ControllerExpandVolume", OnRequest, "ControllerExpandVolume succeeded before NodeExpandVolume where the driver has both"},
		{VolumePath, "NodeExpandVolume", Always, "volume_path is a path at which the volume is staged or published"},
		{RetryForbidden, "Error Scheme", Always, "no repetition after UNIMPLEMENTED without asking the capabilities again, nor of NodeExpandVolume after FAILED_PRECONDITION while nothing changed"},
	}
}

func fieldRules() []RuleInfo {
	return []RuleInfo{
		{RequiredField, "REQUIRED vs. OPTIONAL", Always, "required fields are set"},
		{InvalidField, "Field Requirements", Always, "values are within what their field allows"},
		{SizeLimit, "Size Limits", Always, "strings have at most 128 bytes (node_id 256, paths and mount flags excepted), maps and mount_flags at most 4 KiB"},
		{SecretKey, "Secrets Requirements", Always, "keys of secrets consist of alphanumerics, '-', '_' and '.'"},
		{SecretLeak, "Secrets Requirements", Always, "nothing secret stands in a field that is not marked csi_secret"},
		{ParentMissing, "NodePublishVolume", WithFilesystem, "the parent directory of target_path exists"},
		{TargetExists, "NodePublishVolume", WithFilesystem, "target_path is not created by the orchestrator"},
		{StagingMissing, "NodeStageVolume", WithFilesystem, "staging_target_path is a directory that exists"},
	}
}

func lifeRules() []RuleInfo {
	return []RuleInfo{
		{ProbeFirst, "custom", OnRequest, "Probe said ready before the first use of a driver"},
		{PluginInfoFirst, "custom", OnRequest, "GetPluginInfo returned the expected name before the first use of a driver"},
		{CapabilitiesOnce, "custom", Always, "capabilities are asked no more often than Options.MaxCapabilityCalls per start of the driver, or answer UNIMPLEMENTED (not checked while that is zero)"},
		{LeftBehind, "NodeUnpublishVolume", AtEnd, "nothing is attached, staged or published at the end"},
		{LeftUncertain, "Timeouts", AtEnd, "what has an unknown result was undone or confirmed by repetition"},
		{LeftInFlight, "Concurrency", AtEnd, "no call is in flight at the end"},
	}
}
