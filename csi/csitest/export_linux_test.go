package csitest

// DevicesOf are the loop devices of a file.
var DevicesOf = devicesOf
