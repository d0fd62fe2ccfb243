package dsw

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// nodeMatches reports whether a node fits a selector: one of its terms, and of
// the term every requirement. A term without requirements fits no node (see
// the API's v1.NodeSelectorTerm).
func nodeMatches(selector *v1.NodeSelector, node *v1.Node) bool {
	return slices.ContainsFunc(selector.NodeSelectorTerms, func(term v1.NodeSelectorTerm) bool {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			return false
		}
		for _, req := range term.MatchExpressions {
			value, has := node.Labels[req.Key]
			if !requirementMet(req, value, has) {
				return false
			}
		}
		for _, req := range term.MatchFields {
			if req.Key != "metadata.name" || !requirementMet(req, node.Name, true) {
				return false
			}
		}
		return true
	})
}

// requirementMet compares one label or field, which the node may lack. What is
// malformed is not met.
func requirementMet(req v1.NodeSelectorRequirement, value string, has bool) bool {
	switch req.Operator {
	case v1.NodeSelectorOpIn:
		return has && slices.Contains(req.Values, value)
	case v1.NodeSelectorOpNotIn:
		return len(req.Values) > 0 && (!has || !slices.Contains(req.Values, value))
	case v1.NodeSelectorOpExists:
		return has && len(req.Values) == 0
	case v1.NodeSelectorOpDoesNotExist:
		return !has && len(req.Values) == 0
	case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
		return has && numberMet(req, value)
	}
	return false
}

// numberMet compares a whole number with the one that Gt or Lt names.
func numberMet(req v1.NodeSelectorRequirement, value string) bool {
	if len(req.Values) != 1 {
		return false
	}
	have, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return false
	}
	limit, err := strconv.ParseInt(req.Values[0], 10, 64)
	if err != nil {
		return false
	}
	if req.Operator == v1.NodeSelectorOpGt {
		return have > limit
	}
	return have < limit
}

// selectorText is a selector for people.
func selectorText(selector *v1.NodeSelector) string {
	terms := make([]string, len(selector.NodeSelectorTerms))
	for i, term := range selector.NodeSelectorTerms {
		var parts []string
		for _, req := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			part := req.Key + " " + string(req.Operator)
			if len(req.Values) > 0 {
				part += " [" + strings.Join(req.Values, " ") + "]"
			}
			parts = append(parts, part)
		}
		terms[i] = "(" + strings.Join(parts, ", ") + ")"
	}
	if len(terms) == 0 {
		return "(no term)"
	}
	return strings.Join(terms, " or ")
}
