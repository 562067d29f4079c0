package bus

// ReadObject reads what an object store says about an object.
var ReadObject = readObject
