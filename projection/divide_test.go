package projection

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		value, divisor string
		milli          bool
		want           string
	}{
		{"1500m", "1m", true, "1500"}, {"1500m", "1", true, "2"}, {"1500m", "0", true, "2"}, {"1n", "1", true, "1"},
		{"9223372036854775807", "1", true, "9223372036854775807"}, {"9223372036854775807", "1m", true, "9223372036854775807000"},
		{"128Mi", "1Mi", false, "128"}, {"128Mi", "1", false, "134217728"}, {"129Mi", "1Gi", false, "1"}, {"0", "1Gi", false, "0"},
		{"8E", "1Ki", false, "7812500000000000"},
	} {
		got, err := divide(resource.MustParse(c.value), resource.MustParse(c.divisor), c.milli)
		if err != nil || got != c.want {
			t.Errorf("%s by %s: %s, %v; want %s", c.value, c.divisor, got, err, c.want)
		}
	}
	if got, err := divide(resource.MustParse("1"), resource.MustParse("-1"), true); err == nil {
		t.Errorf("by -1: %s", got)
	}
}
