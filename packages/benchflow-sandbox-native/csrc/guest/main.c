/* bf-guest as a program of its own. */
#include "guest.h"

int main(int argc, char **argv)
{
    return guest_main(argc, argv);
}
