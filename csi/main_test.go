package csi

import (
	"testing"

	"github.com/volumekit/volumekit/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }
