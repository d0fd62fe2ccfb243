package csinode_test

import (
	"testing"

	"github.com/volumekit/volumekit/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }
