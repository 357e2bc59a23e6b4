// attend-server: attention over gRPC.
#include "server/process/run.h"

int main(int argc, char** argv) { return attend::server::RunMain(argc, argv); }
