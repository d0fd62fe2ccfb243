//go:build !unix

package csi

const noFollow = 0
