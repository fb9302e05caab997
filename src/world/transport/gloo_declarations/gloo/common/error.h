// See README.md in the folder above.
#pragma once
