#define Problem int
